"""The comm hooks beside torch's: the same gradients through DDP over Gloo and through our Reducer, two ranks."""
import subprocess

import numpy

from support import BUILD_DIR, InteropTest

SHAPES = [(96, 80), (96,), (64, 33), (7, 5, 3)]


class Hooks(InteropTest):
    def gradients(self, steps, low_rank):
        """Of both ranks; matrices of rank 2 with a common basis and other weights on each rank and in each step."""
        random = numpy.random.default_rng(3)
        result = numpy.zeros((2, steps, sum(int(numpy.prod(shape)) for shape in SHAPES)), "<f4")
        at = 0
        for shape in SHAPES:
            count = int(numpy.prod(shape))
            left, right = random.standard_normal((shape[0], 2)), random.standard_normal((2, count // shape[0]))
            for rank in range(2):
                for step in range(steps):
                    if low_rank and len(shape) > 1:
                        weights = 1 + random.random(2)
                        values = (left * weights) @ right
                    else:
                        values = random.standard_normal(count) * 10.0 ** random.integers(-3, 3)
                    result[rank, step, at:at + count] = values.reshape(-1)
            at += count
        return result

    def run_both(self, hook, steps, low_rank):
        """Exact means, ours (shared memory; over TCP the same bits), torch's."""
        gradients = self.gradients(steps, low_rank)
        for rank in range(2):
            gradients[rank].tofile(self.dir / f"gradients.{rank}")
        shapes = ",".join("x".join(map(str, shape)) for shape in SHAPES)
        for kind in ("shm", "tcp"):
            run = subprocess.run([BUILD_DIR / "tests" / "hook_ranks", kind, hook, shapes, str(steps), self.dir],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                                 env=self.environment())
            self.assertEqual(run.returncode, 0, run.stdout)
        run = self.ddprun("--standalone", "--nproc-per-node=2", self.script("ddp_hooks.py"), hook, shapes, steps,
                          self.dir)
        self.assertEqual(run.code, 0, run)
        read = lambda name: numpy.fromfile(self.dir / name, "<f4").reshape(steps, -1)
        self.assertTrue(numpy.array_equal(read("ours.shm"), read("ours.tcp")))
        return gradients.astype("f8").mean(axis=0), read("ours.shm"), read("torchs")

    def assert_near(self, one, other, limit):
        for step in range(len(one)):
            distance = numpy.linalg.norm(one[step] - other[step]) / numpy.linalg.norm(other[step])
            self.assertLess(distance, limit, f"step {step}")

    def check_cast(self, hook, unit):
        exact, ours, torchs = self.run_both(hook, steps=3, low_rank=False)
        self.assert_near(ours, torchs, 1e-2)
        self.assert_near(ours, exact, unit)
        self.assertFalse(numpy.array_equal(ours, exact.astype("f4")), "nothing was rounded: was the hook used?")
        # Where ours is further from the exact mean than torch's, it is by less than a rounding.
        self.assertLessEqual(numpy.linalg.norm(ours - exact), numpy.linalg.norm(torchs - exact) * 1.001)

    def test_fp16(self):
        self.check_cast("fp16", 2.0 ** -10)

    def test_bf16(self):
        self.check_cast("bf16", 2.0 ** -7)

    def test_power_sgd_of_rank_2(self):
        exact, ours, torchs = self.run_both("powersgd:2", steps=6, low_rank=True)
        # torch sends the first two steps as they are.
        self.assert_near(ours, torchs, 1e-2)
        self.assert_near(ours, exact, 1e-2)
