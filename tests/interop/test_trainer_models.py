"""The trainer's models are torchvision's and Hugging Face's: the same weights at the same seed, to the bit, and the same
logits whichever side wrote the weights."""
import subprocess

from support import BUILD_DIR, InteropTest

GPT = dict(vocabulary=97, context=32, layers=2, heads=4, embedding=64)


def torch_model(name):
    import torch
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel
        return GPT2LMHeadModel(GPT2Config(vocab_size=GPT["vocabulary"], n_positions=GPT["context"],
                                          n_embd=GPT["embedding"], n_layer=GPT["layers"], n_head=GPT["heads"],
                                          attn_implementation="eager", bos_token_id=0, eos_token_id=0))
    if name == "mlp_norm":
        class MlpNorm(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc1, self.fc2, self.fc3 = torch.nn.Linear(20, 33), torch.nn.Linear(33, 16), torch.nn.Linear(16, 5)
                self.norm1, self.norm2 = torch.nn.BatchNorm1d(33), torch.nn.BatchNorm1d(16)

            def forward(self, x):
                return self.fc3(self.norm2(self.fc2(self.norm1(self.fc1(x)).relu())).relu())
        return MlpNorm()
    if name == "mlp":
        class Mlp(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc1, self.fc2, self.fc3 = torch.nn.Linear(20, 33), torch.nn.Linear(33, 16), torch.nn.Linear(16, 5)

            def forward(self, x):
                return self.fc3(self.fc2(self.fc1(x).relu()).relu())
        return Mlp()
    import torchvision
    return getattr(torchvision.models, name)(num_classes=7)


SHAPES = {"mlp": ["inputs=20", "hidden=33x16", "outputs=5"],
          "resnet18": ["outputs=7", "image_size=64"],
          "resnet34": ["outputs=7", "image_size=64"],
          "resnet50": ["outputs=7", "image_size=64"],
          "resnet101": ["outputs=7", "image_size=64"],
          "resnet152": ["outputs=7", "image_size=64"],
          "mlp_norm": ["inputs=20", "hidden=33x16", "outputs=5", "norm=batch"],
          "gpt2": [f"{k}={v}" for k, v in GPT.items()] + ["sequence_length=32"]}


class TrainerModels(InteropTest):
    def dump(self, name, *options):
        run = subprocess.run([BUILD_DIR / "tests" / "dump_model", name.split("_")[0], *SHAPES[name], *options], capture_output=True,
                             text=True, timeout=240, env=self.environment())
        self.assertEqual(run.returncode, 0, run.stderr)

    def tensors(self, name, *options):
        """State dict of our model."""
        import numpy as np
        import torch
        path = self.dir / "dump.bin"
        self.dump(name, f"save={path}", *options)
        data, at, state = path.read_bytes(), 0, {}
        while at < len(data):
            end = data.index(b"\n", at)
            key, count, dtype = data[at:end].decode().split()
            dtype = {"f32": np.float32, "i64": np.int64}[dtype]
            state[key] = torch.from_numpy(np.frombuffer(data, dtype, int(count), end + 1).copy())
            at = end + 1 + int(count) * dtype().itemsize
        return state

    def logits(self, name, inputs, *options):
        import numpy as np
        import torch
        source, target = self.dir / "input.bin", self.dir / "logits.bin"
        if inputs.dim() == 4:
            inputs = inputs.permute(0, 2, 3, 1)
        inputs = inputs.contiguous().to(torch.float32 if inputs.is_floating_point() else torch.int32)
        source.write_bytes(inputs.numpy().tobytes())
        self.dump(name, f"batch={len(inputs)}", f"input={source}", f"logits={target}", *options)
        return torch.from_numpy(np.fromfile(target, np.float32))

    def same_logits(self, name, model, *options):
        import torch
        torch.manual_seed(1)
        inputs = {"mlp": lambda: torch.randn(3, 20), "mlp_norm": lambda: torch.randn(3, 20), "gpt2": lambda: torch.randint(GPT["vocabulary"], (2, 32))}.get(
            name, lambda: torch.randn(2, 3, 64, 64))()
        with torch.no_grad():
            out = model.eval()(inputs)
        expected = (out.logits if name == "gpt2" else out).flatten()
        ours = self.logits(name, inputs, *options)
        difference = (ours - expected).abs().max().item() / expected.abs().max().item()
        self.assertLess(difference, 1e-4, name)

    def test_same_seed_same_weights_and_ours_load_into_theirs(self):
        import torch
        to_the_bit = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        for name in SHAPES:
            for seed in (0, 2**31 + 5):
                with self.subTest(name, seed=seed):
                    torch.manual_seed(seed)
                    model = torch_model(name)
                    theirs = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
                    ours = self.tensors(name, f"seed={seed}")
                    self.assertEqual(sorted(ours), sorted(theirs))
                    for key, value in theirs.items():
                        value = value.flatten()
                        if to_the_bit or value.dtype == torch.int64:
                            self.assertTrue(torch.equal(ours[key], value), key)
                        else:
                            self.assertLess((ours[key] - value).abs().max().item(), 1e-6, key)
            # Another seed, so that the constructor's own weights would not do.
            other = self.tensors(name, "seed=9")
            state = {k: other[k].view(v.shape) for k, v in theirs.items()}
            missing, unexpected = model.load_state_dict(state, strict=False)
            self.assertEqual((missing, unexpected), (["lm_head.weight"] if name == "gpt2" else [], []))
            self.same_logits(name, model, "seed=9")

    def test_theirs_load_into_ours(self):
        import torch
        from safetensors.torch import save_file
        for name in SHAPES:
            with self.subTest(name):
                torch.manual_seed(3)
                model = torch_model(name)
                if name.startswith("resnet"):
                    model.train()(torch.randn(4, 3, 64, 64))  # running statistics that say something
                path = self.dir / f"{name}.safetensors"
                state = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
                save_file(state, path)
                self.same_logits(name, model, f"weights={path}")
        # As on the Hugging Face hub: no prefix, and the masks among the weights.
        hub = {k.removeprefix("transformer."): v for k, v in state.items()}
        hub["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
        save_file(hub, self.dir / "hub.safetensors")
        self.same_logits("gpt2", model, f"weights={self.dir}/hub.safetensors")
