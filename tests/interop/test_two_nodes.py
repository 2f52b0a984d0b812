"""Two launchers on one host that meet at one endpoint, with real Gloo groups across them."""
import socket

from support import InteropTest


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class TwoNodes(InteropTest):
    def launch(self, common, script_arguments, per_node=((), ())):
        running = [
            self.start("ddprun", "--nnodes=2", "--nproc-per-node=1", *common, *more, self.script("ddp_train.py"),
                       self.dir, *script_arguments) for more in per_node
        ]
        return [r.wait() for r in running]

    def check(self, runs, attempt):
        for run in runs:
            self.assertFalse(run.timed_out, run)
            self.assertEqual(run.code, 0, "\n".join(map(str, runs)))
        texts = [(self.dir / f"rank{rank}.attempt{attempt}").read_text() for rank in range(2)]
        self.assertEqual(texts[0], texts[1])
        self.assertIn("world=2 ", texts[0])

    def c10d(self):
        return [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-backend=c10d", "--rdzv-id=job7"]

    def test_c10d_backend(self):
        self.check(self.launch(self.c10d(), []), attempt=0)

    def test_c10d_backend_with_a_death_and_a_restart(self):
        runs = self.launch([*self.c10d(), "--max-restarts=2"], ["--die-once", 1, 7])
        self.check(runs, attempt=1)

    def test_static_backend(self):
        common = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        runs = self.launch(common, [], per_node=(["--node-rank=0"], ["--node-rank=1"]))
        self.check(runs, attempt=0)

    def test_static_backend_with_a_death_and_a_restart(self):
        common = ["--master-addr=127.0.0.1", f"--master-port={free_port()}", "--max-restarts=2"]
        runs = self.launch(common, ["--die-once", 0, "kill"], per_node=(["--node-rank=0"], ["--node-rank=1"]))
        self.check(runs, attempt=1)

    def test_a_standing_daemon_serves_two_nodes(self):
        port = free_port()
        daemon = self.start("ddprun-rendezvous", f"--port={port}")
        self.wait_until(lambda: " port=" in daemon.err, "the daemon to listen: an agent would serve the endpoint itself")
        common = [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d", "--rdzv-id=job8"]
        self.check(self.launch(common, []), attempt=0)
        self.assertIsNone(daemon.process.poll(), daemon.err)


class TorchrunOnOurDaemon(InteropTest):
    def test_torchruns_own_agents_meet_in_our_store(self):
        import pathlib
        import sys
        torchrun = str(pathlib.Path(sys.executable).parent / "torchrun")
        port = free_port()
        daemon = self.start("ddprun-rendezvous", f"--port={port}")
        self.wait_until(lambda: " port=" in daemon.err, "the daemon to listen: an agent would serve the endpoint itself")
        # is_host=0: both agents are clients of our daemon, which they take for a TCPStore.
        arguments = [
            "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
            "--rdzv-id=foreign", "--rdzv-conf=is_host=0", "--local-addr=127.0.0.1", self.script("ddp_train.py"), self.dir
        ]
        runs = [r.wait() for r in [self.start(torchrun, *arguments), self.start(torchrun, *arguments)]]
        for run in runs:
            self.assertEqual(run.code, 0, f"{run}\ndaemon: {daemon.err}")
        self.assertEqual((self.dir / "rank0.attempt0").read_text(), (self.dir / "rank1.attempt0").read_text())
