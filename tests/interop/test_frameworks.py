"""What PyTorch's users run, in the frameworks' documented ways: each script knows nothing of ddprun, loses a rank and
goes on from its own checkpoint. CPU, tiny models."""
import importlib.util
import re
import sys

from support import BUILD_DIR, HERE, InteropTest

PACKAGE = HERE.parent.parent / "deploy" / "python"


class Frameworks(InteropTest):
    def framework(self, script, *arguments, needs=()):
        for name in needs:
            if importlib.util.find_spec(name) is None:
                self.skipTest(f"{name} is not installed")
        return self.ddprun("--standalone", "--nproc-per-node=2", "--max-restarts=1", self.script(f"frameworks/{script}"),
                           *arguments, limit=400)

    def test_fsdp2_device_mesh_and_distributed_checkpoints(self):
        run = self.framework("fsdp2_dcp.py", self.dir / "out")
        self.assertEqual(run.code, 0, run)
        self.assertEqual(sorted(run.out.splitlines()), ["rank 0 did steps 3..5", "rank 1 did steps 3..5"], run)

    def test_transformers_trainer(self):
        run = self.framework("hf_trainer.py", self.dir / "out", needs=["transformers", "accelerate"])
        self.assertEqual(run.code, 0, run)
        self.assertIn("step 8 world 2 from checkpoint-4", run.out, run)

    def test_accelerate(self):
        run = self.framework("accelerate_loop.py", self.dir / "out", needs=["accelerate"])
        self.assertEqual(run.code, 0, run)
        self.assertIn("gathered [0, 1]", run.out, run)

    def test_accelerate_launch_with_ddprun_behind_it(self):
        if importlib.util.find_spec("accelerate") is None:
            self.skipTest("accelerate is not installed")
        run = self.start(sys.executable, "-m", "ddprun.torch", "accelerate", "launch", "--multi_gpu", "--num_processes=2",
                         "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", self.script("frameworks/accelerate_loop.py"),
                         self.dir / "out", env={"DDPRUN_BIN": BUILD_DIR, "PYTHONPATH": PACKAGE}).wait(400)
        self.assertEqual(run.code, 0, run)
        self.assertIn("gathered [0, 1]", run.out, run)
        self.assertIn("ddprun rendezvous complete", run.err, run)

    def test_lightning(self):
        run = self.framework("lightning_ddp.py", self.dir / "out", needs=["lightning"])
        self.assertEqual(run.code, 0, run)
        self.assertIn("epochs 2 world 2 resumed True", run.out, run)

    def test_plain_loop_with_and_without_a_launcher(self):
        run = self.framework("plain_loop.py", f"--out={self.dir / 'two'}")
        self.assertEqual((run.code, run.out), (0, "steps 3..6 world 2\n"), run)
        alone = self.start(sys.executable, self.script("frameworks/plain_loop.py"), f"--out={self.dir / 'one'}").wait()
        self.assertEqual((alone.code, alone.out), (0, "steps 0..6 world 1\n"), alone)

    def test_the_table_names_the_versions_that_run(self):
        table = (PACKAGE / "README.md").read_text().partition("## Frameworks")[2]
        rows = dict(re.findall(r"^\| (\w+) \| ([0-9.]+) \|", table, re.M))
        wanted = dict(re.findall(r"^(\w+)==([0-9.]+)", (HERE / "requirements.txt").read_text(), re.M))
        self.assertEqual(rows, {name: wanted.get(name) for name in rows})
        self.assertGreater(len(rows), 3)
