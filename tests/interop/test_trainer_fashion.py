"""A configuration as it is shipped, to its end: the network that it trains knows clothes."""
import pathlib
import re
import unittest

from support import HERE, InteropTest

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")


@unittest.skipUnless(DATA.exists(), "dataset-fashion-mnist is not installed")
class TrainerFashion(InteropTest):
    def test_mlp_on_two_ranks_reaches_88_percent(self):
        config = HERE.parents[1] / "deploy" / "configs" / "fashion_mnist_mlp.yaml"
        run = self.ddprun("--standalone", "--nproc-per-node=2", "trainer", "--config", config, limit=600)
        self.assertEqual(run.code, 0, run)
        accuracy = re.findall(r"validation accuracy ([0-9.]+) %", run.out + run.err)
        self.assertTrue(accuracy, run)
        self.assertGreaterEqual(float(accuracy[-1]), 88, run)
