"""ddprun and the trainer as steps of a real Slurm of four nodes."""
import pathlib
import random
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from engine_case import BIN, EngineCase, main
from engine_hosts import Hosts, Slurm, missing

DDPRUN, TRAINER = str(BIN / "ddprun"), str(BIN / "trainer")


class SlurmSteps(EngineCase):
    @classmethod
    def reason(cls):
        return missing(*Slurm.PROGRAMS)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hosts = Hosts(4, cls.folder)
        cls.slurm = Slurm(cls.hosts)
        cls.addClassCleanup(cls.slurm.stop)
        cls.hosts.up()
        cls.slurm.start()

    def srun(self, *words, timeout=90):
        return self.slurm.run("srun", "--overlap", *words, timeout=timeout)

    def test_ddprun_alone_is_one_world(self):
        done = self.srun("-N4", "--ntasks-per-node=1", DDPRUN, "--nproc-per-node=2", "trainer", "--config", "short.yaml")
        self.assert_one_world(done, 8, 4)
        self.assertIn("from Slurm (srun): nnodes=4 node-rank=3 rdzv-backend=c10d rdzv-endpoint=" + self.hosts.host(1),
                      done.stderr)
        self.assertIn(".0.0", done.stderr)

    def test_what_is_given_is_kept(self):
        done = self.srun("-N2", "--ntasks-per-node=1", DDPRUN, "--rdzv-id=mine", "--nnodes=1:2", "--node-rank=0",
                         "--rdzv-conf=last_call_timeout=1", "trainer", "--config", "short.yaml")
        self.assert_one_world(done, 2, 2)
        taken = [line for line in done.stderr.splitlines() if "from Slurm" in line]
        self.assertEqual(len(taken), 2)
        for line in taken:
            for word in ("nnodes=", "node-rank=", "rdzv-id="):
                self.assertNotIn(word, line)

    def test_trainer_alone_is_one_world(self):
        for layout in (["--distribution=block"], ["--distribution=cyclic"]):
            done = self.srun("-N2", "-n4", *layout, TRAINER, "--config", "short.yaml")
            self.assert_one_world(done, 4, 2)
            self.assertIn("4 ranks on 2 nodes by srun, without ddprun: no restarts", done.stderr)

    def test_trainer_on_nodes_of_different_sizes(self):
        done = self.srun("-N2", "-n3", "--ntasks-per-node=2", TRAINER, "--config", "short.yaml")
        self.assert_one_world(done, 3, 2)

    def test_single_trains_copies(self):
        done = self.srun("-N2", "-n2", TRAINER, "--single", "--config", "short.yaml")
        self.assertEqual(done.stdout.count("finished after step"), 2, done.stdout + done.stderr)

    def test_steps_of_a_job_and_jobs_of_a_node_do_not_share(self):
        results = []

        def one():
            results.append(self.srun("-N2", "-c1", "--ntasks-per-node=1", DDPRUN, "trainer", "--config", "short.yaml"))
        threads = [threading.Thread(target=one) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for done in results:
            self.assert_one_world(done, 2, 2)
        script = self.folder / "steps.sh"
        script.write_text(f"#!/bin/bash\nfor i in 1 2; do srun --overlap -N2 --ntasks-per-node=1 {DDPRUN} trainer --config "
                          "short.yaml >step$i.out 2>&1 & pids+=($!); done\nrc=0; for p in ${pids[@]}; do wait $p || rc=1; "
                          "done; exit $rc\n")
        done = self.slurm.run("sbatch", "--wait", "-N2", "-o", "steps.out", str(script))
        text = [(self.folder / f"step{i}.out").read_text() for i in (1, 2)]
        self.assertEqual(done.returncode, 0, text)
        for one_step in text:
            self.assertIn("TCP ring, 2 ranks", one_step)

    def test_array_jobs_have_ports_of_their_own(self):
        done = self.slurm.run("sbatch", "--wait", "--array=1-2", "-N2", "-c1", "--ntasks-per-node=1", "-o", "array%a.out",
                              "--wrap", f"srun {DDPRUN} trainer --config short.yaml")
        for i in (1, 2):
            text = (self.folder / f"array{i}.out").read_text()
            self.assertIn("TCP ring, 2 ranks", text)
        self.assertEqual(done.returncode, 0)

    def test_several_ddprun_on_a_node_are_refused(self):
        done = self.srun("-N2", "--ntasks-per-node=2", DDPRUN, "trainer", "--config", "short.yaml")
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"Slurm started 2 ddprun on {self.hosts.host(1)}; ddprun starts the workers itself: srun "
                      "--ntasks-per-node=1 ddprun --nproc-per-node=2", done.stderr)
        alone = self.srun("-N2", "--ntasks-per-node=2", DDPRUN, "--standalone", "trainer", "--config", "short.yaml")
        self.assertEqual(alone.stdout.count("finished after step"), 4, alone.stderr)

    def test_shells_of_a_job_are_refused(self):
        batch = self.slurm.run("sbatch", "--wait", "-N3", "-o", "batch.out", "--wrap", f"{DDPRUN} trainer --config short.yaml")
        self.assertEqual(batch.returncode, 2)
        self.assertRegex((self.folder / "batch.out").read_text(),
                         r"this job has 3 nodes \(\S+\) but ddprun was not started by srun: srun --ntasks-per-node=1 ddprun "
                         r"\.\.\.; --nnodes=1 to use this host only")
        salloc = self.slurm.run("salloc", "-N1", DDPRUN, "trainer", "--config", "short.yaml")
        self.assertEqual(salloc.returncode, 2)
        self.assertIn(f"this shell is on {self.hosts.name}hub, and the nodes of its Slurm job are", salloc.stderr)
        one = self.slurm.run("sbatch", "--wait", "-N3", "-o", "one.out", "--wrap",
                             f"{DDPRUN} --nnodes=1 trainer --config short.yaml")
        self.assertEqual(one.returncode, 0)

    def test_a_terminal_of_several_tasks_is_refused(self):
        done = subprocess.run(["script", "-qec", " ".join([*self.hosts.inside("hub"), "srun", "-N2", "--pty", "bash", "-c",
                                                           f"'{DDPRUN} trainer --config short.yaml'"]), "/dev/null"],
                              env=self.slurm.env, capture_output=True, text=True, timeout=60, check=False,
                              stdin=subprocess.DEVNULL)
        self.assertIn("this terminal is one of the 2 tasks of its Slurm step on 2 nodes", done.stdout.replace("\r", ""))

    def test_lists_are_read_as_scontrol_reads_them(self):
        lists = ["cl1", "cl[1-3]", "cl[1-3,07-08],gpu5", "a[09-11]", "n[001-003]", "x,y,z", "r[1,3,5-6]"]
        chosen = random.Random(7)
        for _ in range(40):
            part = []
            for _ in range(chosen.randint(1, 3)):
                low = chosen.randint(0, 120)
                part.append(f"n{chosen.choice('abc')}[{low:0{chosen.randint(1, 4)}}-{low + chosen.randint(0, 30)}]")
            lists.append(",".join(part))
        for text in lists:
            theirs = self.slurm.run("scontrol", "show", "hostnames", text).stdout
            ours = subprocess.run([BIN / "tests" / "host_list_lines", text], capture_output=True, text=True, check=False)
            self.assertEqual(ours.stdout, theirs, text)


if __name__ == "__main__":
    main()
