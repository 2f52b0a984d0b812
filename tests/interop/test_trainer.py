"""The trainer beside PyTorch DDP over Gloo: same weights, same data, 20 steps. Models are torchvision's and Hugging
Face's own; weights travel as safetensors in both directions."""
import json
import math
import sys

from support import InteropTest

STEPS = 20


class Trainer(InteropTest):
    def prepare(self):
        run = self.run_program(sys.executable, self.script("trainer_torch.py"), "prepare", self.dir)
        self.assertEqual(run.code, 0, run)
        self.cases = json.loads((self.dir / "cases.json").read_text())

    def torch(self, world, *cases):
        command = (self.script("trainer_torch.py"), "train", self.dir, *cases)
        if world == 1:
            run = self.run_program(sys.executable, *command, limit=600)
        else:
            run = self.ddprun("--standalone", f"--nproc-per-node={world}", *command, limit=600)
        self.assertEqual(run.code, 0, run)

    def config(self, name, world, **train):
        case = self.cases[name]
        model, data = case["model"], case.get("data", case["model"])
        folder = self.dir / f"{name}-{world}-{train.get('accumulate', case.get('accumulate', 1))}"
        folder.mkdir()
        shape = {"mlp": "hidden: [32, 16], outputs: 5",
                 "gpt2": "vocabulary: 97, context: 32, layers: 2, heads: 4, embedding: 64",
                 "resnet18": "stem: small, outputs: 10"}[model]
        if model == "gpt2":
            source = f"format: tokens, train: {self.dir}/gpt2.bin, sequence_length: 32"
        else:
            source = (f"format: npy, train: {{inputs: {self.dir}/{data}.x.npy, targets: {self.dir}/{data}.y.npy}}")
        optimizer = ", ".join(f"{k}: {json.dumps(v)}" for k, v in case["optimizer"].items())
        settings = {"accumulate": case.get("accumulate", 1), "max_steps": STEPS, "epochs": 1, "on_nan": "skip", **train}
        batch = settings.pop("batch", case["batch"])
        lines = [
            f"model: {{name: {model}, {shape}, weights: {self.dir}/{model}.safetensors}}",
            f"data: {{{source}, batch_size: {batch}, shuffle: false, num_workers: 0}}",
            f"loss: {{name: cross_entropy, label_smoothing: {case.get('smoothing', 0)}}}",
            f"optimizer: {{{optimizer}}}",
            "train: {" + ", ".join(f"{k}: {v}" for k, v in settings.items()) + "}",
            "ddp: {backend: cpu, bucket_cap_mb: 1, timeout_s: 300}",
            f"checkpoint: {{dir: {folder}/checkpoint, every_steps: 0, resume: none}}",
            f"log: {{file: {folder}/train.log}}",
            f"output: {{metrics: {folder}/metrics.jsonl}}",
        ]
        if "scale" in case:
            lines.append(f"precision: {{dtype: {case.get('dtype', 'fp32')}, loss_scaling: true, "
                         f"init_scale: {case['scale']!r}, growth_interval: {case['interval']}}}")
        path = folder / "config.yaml"
        path.write_text("\n".join(lines) + "\n")
        return folder, path

    def ours(self, name, world, **train):
        folder, path = self.config(name, world, **train)
        if world == 1:
            run = self.run_program("trainer", "--config", path)
        else:
            run = self.ddprun("--standalone", f"--nproc-per-node={world}", "trainer", "--config", path)
        self.assertEqual(run.code, 0, run)
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([s["step"] for s in steps], list(range(1, STEPS + 1)), run)
        return folder, steps

    def compare(self, name, world, tolerance=1e-5):
        theirs = json.loads((self.dir / f"{name}.torch-{world}.json").read_text())
        folder, ours = self.ours(name, world)
        tolerance = self.cases[name].get("near", tolerance)
        report = "\n".join(f"{a['loss']!r} {b['loss']!r} {a['scale']} {b['scale']} {a['skipped']} {b['skipped']}"
                           for a, b in zip(theirs, ours))
        for a, b in zip(theirs, ours):
            if "scale" in self.cases[name]:
                self.assertEqual((a["scale"], a["skipped"]), (b["scale"], b["skipped"]), report)
            if not math.isfinite(a["loss"]):
                self.assertFalse(b["loss"] is not None and math.isfinite(b["loss"]), report)
                continue
            limit = tolerance * max(1.0, abs(a["loss"]))
            self.assertTrue(math.isclose(a["loss"], b["loss"], rel_tol=0, abs_tol=limit),
                            f"{name} on {world} rank(s), torch's loss and ours:\n{report}")
        return folder, theirs

    def check_weights(self, name, world, folder, tolerance):
        """The trained file loads into the real model, and says what torch's own training came to."""
        import torch
        from safetensors.torch import load_file
        from support import HERE
        sys.path.insert(0, str(HERE / "scripts"))
        import trainer_torch
        saved = sorted((folder / "checkpoint").glob("step-*/model.safetensors"))
        self.assertEqual(len(saved), 1)
        mine, theirs = load_file(saved[0]), load_file(self.dir / f"{name}.torch-{world}.safetensors")
        self.assertEqual(sorted(mine), sorted(theirs))
        kind = self.cases[name]["model"]
        outputs = []
        for state in (mine, theirs):
            model = trainer_torch.build(kind).eval()
            missing, unexpected = model.load_state_dict(state, strict=False)
            self.assertEqual((missing, unexpected), (["lm_head.weight"] if kind == "gpt2" else [], []))
            inputs, _ = trainer_torch.samples(self.dir, {"model": kind})
            with torch.no_grad():
                out = model(inputs[:4].contiguous())
            outputs.append(out.logits if kind == "gpt2" else out)
        difference = (outputs[0] - outputs[1]).abs().max().item()
        self.assertLess(difference, tolerance * max(1.0, outputs[1].abs().max().item()), "logits of the two files")
        for key, value in theirs.items():
            self.assertEqual(tuple(mine[key].shape), tuple(value.shape), key)
            if value.dtype == torch.int64:
                self.assertTrue(torch.equal(mine[key], value), key)
                continue
            self.assertEqual(mine[key].dtype, value.dtype, key)
            if key.endswith("c_attn.bias"):
                # The loss does not depend on the keys' bias: its gradient is rounding noise, which AdamW makes large.
                width = value.numel() // 3
                value[width:2 * width] = mine[key][width:2 * width]
            scale = value.norm().item() + 1e-3 * value.numel()**0.5
            self.assertLess((mine[key] - value).norm().item() / scale, tolerance, key)

    def test_losses_and_weights_on_one_rank(self):
        self.prepare()
        names = [n for n in self.cases if n != "resnet18_sgd"]
        self.torch(1, *names)
        for name in names:
            with self.subTest(name):
                folder, theirs = self.compare(name, 1)
                self.check_weights(name, 1, folder, self.cases[name].get("near", 1e-4))
                if "scale" in self.cases[name]:
                    self.assertEqual(sum(s["skipped"] for s in theirs), 1, "the planted inf skips one step")
                    self.assertGreater(len({s["scale"] for s in theirs}), 2, "the scale backs off and grows")

    def test_losses_on_two_ranks(self):
        self.prepare()
        names = [n for n in self.cases if n != "resnet18_sgd"]
        self.torch(2, *names)
        for name in names:
            with self.subTest(name):
                folder, _ = self.compare(name, 2)
                self.check_weights(name, 2, folder, self.cases[name].get("near", 1e-4))

    def test_losses_on_four_ranks(self):
        self.prepare()
        names = ["mlp_sgd", "mlp_scaler_inf", "gpt2_adamw"]
        self.torch(4, *names)
        for name in names:
            with self.subTest(name):
                self.compare(name, 4)

    def test_resnet18_is_as_near_to_torch_as_torch_to_itself(self):
        self.prepare()
        run = self.run_program(sys.executable, self.script("trainer_torch.py"), "resnet_noise", self.dir, "resnet18_sgd",
                               limit=900)
        self.assertEqual(run.code, 0, run)
        noise = json.loads((self.dir / "noise.json").read_text())
        tolerance = max(1e-5, 3 * noise)
        print(f"(torch against torch {noise:.1e}) ", end="", flush=True)
        for world in (1, 2):
            if world > 1:
                self.torch(world, "resnet18_sgd")
            folder, _ = self.compare("resnet18_sgd", world, tolerance)
            self.check_weights("resnet18_sgd", world, folder, 0.2)

    def test_ranks_and_accumulation_are_the_same_thing(self):
        self.prepare()
        for name, batch in (("mlp_sgd", 8), ("gpt2_adamw", 2)):
            runs = [self.ours(name, world, accumulate=4 // world, batch=batch)[1] for world in (1, 2, 4)]
            for other in runs[1:]:
                for a, b in zip(runs[0], other):
                    self.assertLess(abs(a["loss"] - b["loss"]), 1e-6 * max(1, abs(a["loss"])), name)
