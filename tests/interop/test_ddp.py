"""Unmodified PyTorch scripts under ddprun: process groups, DDP, and a restart in the middle."""
import re

from support import InteropTest


class Ddp(InteropTest):
    def results(self, attempt, world):
        """The files of that attempt; all ranks must have come to the same parameters."""
        texts = [(self.dir / f"rank{rank}.attempt{attempt}").read_text() for rank in range(world)]
        self.assertEqual(len(set(texts)), 1, texts)
        self.assertIn(f"world={world} ", texts[0])
        return texts[0]

    def test_two_ranks_train_with_ddp_and_gloo(self):
        run = self.ddprun("--standalone", "--nproc-per-node=2", self.script("ddp_train.py"), self.dir)
        self.assertEqual(run.code, 0, run)
        self.results(attempt=0, world=2)

    def test_four_ranks(self):
        run = self.ddprun("--standalone", "--nproc_per_node", "4", self.script("ddp_train.py"), self.dir)
        self.assertEqual(run.code, 0, run)
        self.results(attempt=0, world=4)

    def test_as_a_module(self):
        self.write("my_train.py", open(self.script("ddp_train.py")).read())
        run = self.ddprun("--nproc-per-node=2", "-m", "my_train", self.dir)
        self.assertEqual(run.code, 0, run)
        self.results(attempt=0, world=2)

    def test_restart_after_a_death_in_a_working_group_8_of_8(self):
        # torchrun 2.15 manages 1 or 2 of 8: the next attempt reads the addresses of the last one from a store that was
        # not emptied.
        good, report = 0, []
        for turn in range(8):
            folder = self.dir / f"turn{turn}"
            folder.mkdir()
            victim, how = turn % 2, "kill" if turn % 4 < 2 else "7"
            run = self.ddprun("--standalone", "--nproc-per-node=2", "--max-restarts=1", self.script("ddp_train.py"),
                              folder, "--die-once", victim, how, limit=180)
            files = sorted(path.name for path in folder.iterdir())
            if run.code == 0 and files == ["rank0.attempt1", "rank1.attempt1"]:
                good += 1
            else:
                report.append(f"turn {turn}: rank {victim} {how}: files {files}\n{run}")
        self.assertEqual(good, 8, "\n".join(report))

    def test_no_budget_ends_the_job_with_the_workers_own_code(self):
        run = self.ddprun("--standalone", "--nproc-per-node=2", self.script("ddp_train.py"), self.dir, "--die-once", 1,
                          7)
        self.assertEqual(run.code, 7, run)
        self.assertTrue(re.search(r"rank 1\b", run.err), run)

    def test_an_explicit_master_port_is_kept_over_a_restart(self):
        import socket
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        run = self.ddprun("--nnodes=1", "--nproc-per-node=2", f"--master-port={port}", "--max-restarts=1",
                          self.script("ddp_train.py"), self.dir, "--die-once", 1, 7)
        self.assertEqual(run.code, 0, run)
        self.results(attempt=1, world=2)


class InitMethods(InteropTest):
    def check(self, how):
        run = self.ddprun("--standalone", "--nproc-per-node=2", self.script("init_methods.py"), self.dir, how)
        self.assertEqual(run.code, 0, run)
        for rank in range(2):
            self.assertEqual((self.dir / f"rank{rank}").read_text(), "ok\n", run)

    def test_env(self):
        self.check("env")

    def test_tcp_at_the_agents_store(self):
        self.check("tcp")

    def test_an_explicit_store_client(self):
        self.check("store")
