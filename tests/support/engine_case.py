"""What the tests on real engines share: a small training, and what must come out of it."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(os.environ.get("DDPRUN_BINARY_DIR", "build/release")).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]

CONFIG = """model: {{name: mlp, hidden: [64], classes: 10}}
data: {{format: synthetic, samples: {samples}, sample_shape: [64], batch_size: 16, drop_last: true}}
optimizer: {{name: sgd, lr: 0.05}}
train: {{epochs: {epochs}}}
{more}
"""


def losses(text):
    """{epoch: mean loss}, of each epoch's last line."""
    return {int(e): loss for e, loss in re.findall(r"epoch (\d+)/\d+ done: mean loss ([0-9.]+)", text)}


class EngineCase(unittest.TestCase):
    """Has a folder for the class, and is skipped as a whole where `reason()` says why."""

    folder = None

    @classmethod
    def reason(cls):
        return ""

    @classmethod
    def setUpClass(cls):
        why = cls.reason()
        if why:
            print(f"{cls.__name__}: SKIPPED: {why}", file=sys.stderr)
            raise unittest.SkipTest(why)
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-engine-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.config("short.yaml", samples=1024, epochs=2)

    @classmethod
    def config(cls, name, samples, epochs, more=""):
        path = cls.folder / name
        path.write_text(CONFIG.format(samples=samples, epochs=epochs, more=more))
        return path

    def one_host(self, world, config="short.yaml"):
        """The losses of the same training by workers of one host."""
        done = subprocess.run([BIN / "ddprun", "--standalone", "--engine=none", f"--nproc-per-node={world}", "trainer",
                               "--config", str(self.folder / config)], capture_output=True, text=True, timeout=120,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return losses(done.stdout)

    def assert_one_world(self, done, world, hosts, config="short.yaml"):
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, text)
        how = f"{world} ranks;" if hosts == 1 else "TCP ring, " + f"{world} ranks;" if hosts == world else f"{world} ranks on {hosts} hosts"
        self.assertIn(how, text)
        self.assertEqual(text.count("finished after step"), 1, text)
        found, expected = losses(text), self.one_host(world, config)
        self.assertEqual(found.keys(), expected.keys(), text)
        for epoch, loss in expected.items():  # sums over hosts are made in another order
            self.assertAlmostEqual(float(found[epoch]), float(loss), delta=2e-4, msg=text)


def main():
    """python3 FILE [Class.test ...]; exit 77 where all was skipped."""
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.skipped and result.testsRun == len(result.skipped) - sum(_whole(s) for s, _ in result.skipped) else 0)


def _whole(skipped):
    """A class that was skipped at its setup counts as skipped, and none of its tests as run."""
    return not isinstance(skipped, unittest.TestCase)
