"""The trainer without any launcher, told by hand what torch's env:// is told."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from engine_case import BIN, EngineCase, main

TRAINER = str(BIN / "trainer")


def free_port():
    import socket
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class ByHand(EngineCase):
    def start(self, rank, world, port, address="127.0.0.1", **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "PMI", "TORCHELASTIC"))}
        env |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": address, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **more}
        one = subprocess.Popen([TRAINER, "--config", "short.yaml"], cwd=self.folder, env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(lambda: one.poll() is None and one.kill())
        return one

    def world(self, address, **more):
        port = free_port()
        ranks = [self.start(rank, 2, port, address, **more) for rank in (1, 0)]
        outs = [one.communicate(timeout=90) for one in ranks]
        return subprocess.CompletedProcess([], max(one.returncode for one in ranks), "".join(o for o, _ in outs),
                                           "".join(e for _, e in outs))

    def test_rank_zero_serves_the_store(self):
        self.assert_one_world(self.world("127.0.0.1"), 2, 1)
        self.assert_one_world(self.world("localhost"), 2, 1)

    def test_it_ends_with_rank_zero(self):
        port = free_port()
        first = self.start(0, 2, port)
        server = self.wait_for_child(first)
        first.kill()
        first.wait()
        self.wait(lambda: not os.path.exists(f"/proc/{server}") or self.state(server) == "Z")

    def test_where_the_agent_serves_it_nobody_else_does(self):
        port = free_port()
        one = self.start(0, 2, port, TORCHELASTIC_USE_AGENT_STORE="True")
        self.wait(lambda: one.poll() is not None or self.children(one.pid) == [])
        self.assertEqual(self.children(one.pid), [])

    def test_without_ddprun_it_says_what_is_missing(self):
        lone = self.folder / "lone"
        lone.mkdir()
        program = lone / "trainer"
        program.write_bytes(pathlib.Path(TRAINER).read_bytes())
        program.chmod(0o755)
        env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PATH": "/nowhere"}
        done = subprocess.run([program, "--config", "short.yaml"], cwd=self.folder, env=env, capture_output=True, text=True,
                              timeout=30, check=False)
        self.assertIn("serves its store with ddprun, which is neither beside trainer nor in PATH", done.stderr)
        self.assertNotEqual(done.returncode, 0)

    @staticmethod
    def state(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return ""

    @staticmethod
    def children(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []

    def wait(self, condition):
        from engine_hosts import wait_for
        wait_for("the expected state", condition, 20)

    def wait_for_child(self, process):
        found = []
        self.wait(lambda: found.extend(self.children(process.pid)) or found)
        return found[0]


if __name__ == "__main__":
    main()
