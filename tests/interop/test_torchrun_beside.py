"""The same script under torchrun 2.15 and under ddprun: same numbers, same view of the world."""
import json
import pathlib
import sys

from support import InteropTest

TORCHRUN = str(pathlib.Path(sys.executable).parent / "torchrun")


class TorchrunBeside(InteropTest):
    def both(self, *arguments):
        """Runs torchrun and ddprun with the same arguments; "{out}" becomes a folder of each. Gives both folders."""
        folders = []
        for program in (TORCHRUN, "ddprun"):
            folder = self.dir / pathlib.Path(program).name
            folder.mkdir()
            run = self.run_program(program, *[a.replace("{out}", str(folder)) for a in arguments])
            self.assertEqual(run.code, 0, run)
            folders.append(folder)
        return folders

    def test_ddp_comes_to_the_same_parameters(self):
        old, new = self.both("--standalone", "--nproc-per-node=2", self.script("ddp_train.py"), "{out}")
        for rank in range(2):
            name = f"rank{rank}.attempt0"
            self.assertEqual((new / name).read_text(), (old / name).read_text())

    def test_workers_see_the_same(self):
        old, new = self.both("--nproc-per-node=2", "--max-restarts=3", "--role=trainer", self.script("what_i_see.py"),
                             "{out}", "--nnodes=7", "a b", "", "--", "-x")
        for rank in range(2):
            name = f"seen{rank}.json"
            theirs, ours = json.loads((old / name).read_text()), json.loads((new / name).read_text())
            self.assertEqual(ours, theirs)
            self.assertTrue(ours["launched"])


class Record(InteropTest):
    def test_a_recorded_exception_is_the_root_cause_in_the_report(self):
        run = self.ddprun("--standalone", "--nproc-per-node=2", self.script("record_failure.py"))
        self.assertEqual(run.code, 1, run)
        self.assertIn("the learning rate fell into the sea", run.err, run)
        self.assertIn("ValueError", run.err, run)
        report = run.err[run.err.rindex("rank 1"):] if "rank 1" in run.err else ""
        self.assertTrue(report, run)
