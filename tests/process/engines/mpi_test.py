"""ddprun and the trainer under the real mpirun of Open MPI and mpiexec of MPICH, over three hosts."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import subprocess

from engine_case import BIN, EngineCase, main
from engine_hosts import ENV, Hosts, missing

DDPRUN, TRAINER = str(BIN / "ddprun"), str(BIN / "trainer")
PROGRAM = {"openmpi": "mpirun.openmpi", "mpich": "mpirun.mpich"}


class Mpi(EngineCase):
    @classmethod
    def reason(cls):
        return missing(*PROGRAM.values())

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hosts = Hosts(3, cls.folder)
        cls.addClassCleanup(cls.hosts.down)
        cls.hosts.up()
        cls.rsh = cls.hosts.rsh()

    def mpi(self, kind, a_node, hosts, *words, timeout=90):
        names = [self.hosts.host(i) for i in range(1, hosts + 1)]
        if kind == "openmpi":
            # A port of its own for each of the daemons, or a warning of mpirun's comes instead of the start.
            start = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca",
                     "plm_rsh_agent", self.rsh, "--host", ",".join(f"{n}:{a_node}" for n in names), "-N", str(a_node)]
        else:
            start = ["mpirun.mpich", "-launcher", "ssh", "-launcher-exec", self.rsh, "-hosts", ",".join(names), "-ppn",
                     str(a_node), "-np", str(a_node * hosts)]
        return subprocess.run([*self.hosts.inside(1), *start, *words], env=ENV, capture_output=True, text=True,
                              timeout=timeout, check=False, stdin=subprocess.DEVNULL)

    def ddprun_is_one_world(self, kind, name):
        done = self.mpi(kind, 1, 3, DDPRUN, "--nproc-per-node=2", "trainer", "--config", "short.yaml")
        self.assert_one_world(done, 6, 3)
        # mpirun hands a terminal without a width to what it starts: no place for a bar.
        self.assertNotIn("\x1b[K", done.stdout)
        self.assertRegex(done.stdout + done.stderr, rf"from {name} \(\w+\): nnodes=3 node-rank=2 rdzv-backend=c10d "
                         rf"rdzv-endpoint={re.escape(self.hosts.address(1))}:\d+ rdzv-id=\S+")

    def trainer_is_one_world(self, kind, starter):
        done = self.mpi(kind, 2, 2, TRAINER, "--config", "short.yaml")
        self.assert_one_world(done, 4, 2)
        self.assertIn(f"4 ranks on 2 nodes by {starter}, without ddprun: no restarts", done.stdout + done.stderr)
        self.assertNotIn("\x1b[K", done.stdout)
        here = self.mpi(kind, 3, 1, TRAINER, "--config", "short.yaml")
        self.assert_one_world(here, 3, 1)

    def several_are_refused(self, kind, sentence):
        done = self.mpi(kind, 2, 1, DDPRUN, "trainer", "--config", "short.yaml")
        self.assertIn(sentence, done.stdout + done.stderr)
        self.assertNotEqual(done.returncode, 0)

    def test_ddprun_under_open_mpi(self):
        self.ddprun_is_one_world("openmpi", "Open MPI")

    def test_ddprun_under_mpich(self):
        self.ddprun_is_one_world("mpich", "MPICH")

    def test_trainer_under_open_mpi(self):
        self.trainer_is_one_world("openmpi", "mpirun")

    def test_trainer_under_mpich(self):
        self.trainer_is_one_world("mpich", "mpiexec")

    def test_several_ddprun_on_a_node_are_refused(self):
        where = f"2 ddprun on {self.hosts.host(1)}; ddprun starts the workers itself: "
        self.several_are_refused("openmpi", "Open MPI started " + where + "mpirun -N 1 --bind-to none ddprun")
        self.several_are_refused("mpich", "MPICH started " + where + "mpiexec -ppn 1 ddprun")

    def test_copies_where_they_are_asked_for(self):
        done = self.mpi("mpich", 2, 1, DDPRUN, "--engine=none", "--standalone", "trainer", "--config", "short.yaml")
        self.assertEqual(done.stdout.count("finished after step"), 2, done.stdout + done.stderr)
        done = self.mpi("openmpi", 2, 1, TRAINER, "--single", "--config", "short.yaml")
        self.assertEqual(done.stdout.count("finished after step"), 2, done.stdout + done.stderr)


if __name__ == "__main__":
    main()
