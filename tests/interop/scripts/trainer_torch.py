"""PyTorch's side of test_trainer.py.

    trainer_torch.py prepare FOLDER            data, initial weights and cases.json for both sides
    trainer_torch.py train FOLDER CASE ...     each case under DDP (Gloo); rank 0 writes CASE.torch-W.json and .safetensors
    trainer_torch.py resnet_noise FOLDER CASE  how far torch is from torch: memory formats and threads;
                                               writes the first run as "train" does
"""
import json
import os
import pathlib
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
GPT = dict(vocabulary=97, context=32, layers=2, heads=4, embedding=64)
CASES = {
    "mlp_sgd": dict(model="mlp", batch=8, optimizer=dict(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-3)),
    "mlp_nesterov_accumulate": dict(model="mlp", batch=8, accumulate=4, optimizer=dict(
        name="sgd", lr=0.05, momentum=0.9, nesterov=True)),
    "mlp_adamw_clip": dict(model="mlp", batch=8, smoothing=0.1, optimizer=dict(
        name="adamw", lr=0.01, weight_decay=0.1, clip_grad_norm=0.5)),
    "mlp_adam": dict(model="mlp", batch=8, optimizer=dict(name="adam", lr=0.01, weight_decay=0.1)),
    # Samples 33 to 39 have a feature of 1e25: gradients overflow under this scale and the step is skipped.
    "mlp_scaler_inf": dict(model="mlp", data="mlp_inf", batch=8, scale=2.0**60, interval=5,
                           optimizer=dict(name="sgd", lr=0.05)),
    # Under torch.autocast; `near`: tolerance, ten times what was measured. In f16 the planted value is inf from the
    # start; a larger scale would overflow torch's weight gradients, which it has in f16 and we in f32.
    "mlp_scaler_f16": dict(model="mlp", data="mlp_inf", batch=8, dtype="fp16", scale=64.0, interval=4, near=1e-3,
                           optimizer=dict(name="sgd", lr=0.05)),
    "mlp_scaler_bf16": dict(model="mlp", data="mlp_inf", batch=8, dtype="bf16", scale=2.0**60, interval=5, near=1e-2,
                            optimizer=dict(name="sgd", lr=0.05)),
    "gpt2_adamw": dict(model="gpt2", batch=4, optimizer=dict(name="adamw", lr=1e-3, weight_decay=0.1, clip_grad_norm=1.0)),
    "gpt2_sgd_accumulate": dict(model="gpt2", batch=2, accumulate=4, optimizer=dict(name="sgd", lr=0.05, momentum=0.9)),
    # A small learning rate: at 0.02 two runs of torch itself are 0.1 apart after 20 steps on random labels.
    "resnet18_sgd": dict(model="resnet18", batch=4, optimizer=dict(name="sgd", lr=0.0005, momentum=0.9, weight_decay=1e-4)),
}


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = torch.nn.Linear(20, 32), torch.nn.Linear(32, 16), torch.nn.Linear(16, 5)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def build(name):
    torch.manual_seed(7)
    if name == "mlp":
        return Mlp()
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel
        return GPT2LMHeadModel(GPT2Config(
            vocab_size=GPT["vocabulary"], n_positions=GPT["context"], n_embd=GPT["embedding"], n_layer=GPT["layers"],
            n_head=GPT["heads"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"))
    from torchvision.models import resnet18
    model = resnet18(num_classes=10)  # torchvision's own, with the stem for small images
    model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = torch.nn.Identity()
    return model


def prepare(folder):
    random = np.random.default_rng(5)
    x = random.standard_normal((2560, 20)).astype(np.float32)
    y = random.integers(0, 5, 2560)
    np.save(folder / "mlp.x.npy", x)
    np.save(folder / "mlp.y.npy", y)
    x[33:40, 3] = 1e25
    np.save(folder / "mlp_inf.x.npy", x)
    np.save(folder / "mlp_inf.y.npy", y)
    np.save(folder / "resnet18.x.npy", random.standard_normal((320, 32, 32, 3)).astype(np.float32))
    np.save(folder / "resnet18.y.npy", random.integers(0, 10, 320))
    random.integers(0, GPT["vocabulary"], 640 * 32 + 1).astype(np.uint16).tofile(folder / "gpt2.bin")
    for name in ("mlp", "gpt2", "resnet18"):
        state = {k: v.contiguous() for k, v in build(name).state_dict().items() if k != "lm_head.weight"}
        save_file(state, folder / f"{name}.safetensors")
    (folder / "cases.json").write_text(json.dumps(CASES))


def samples(folder, case):
    name = case.get("data", case["model"])
    if name == "gpt2":
        tokens = torch.from_numpy(np.fromfile(folder / "gpt2.bin", np.uint16).astype(np.int64))
        t = GPT["context"]
        count = (len(tokens) - 1) // t
        return tokens[:count * t].view(count, t), tokens[1:count * t + 1].view(count, t)
    x, y = torch.from_numpy(np.load(folder / f"{name}.x.npy")), torch.from_numpy(np.load(folder / f"{name}.y.npy"))
    return (x.permute(0, 3, 1, 2) if x.dim() == 4 else x), y


def train(folder, case, rank=0, world=1, memory_format=torch.contiguous_format):
    model = build(case["model"])
    state = load_file(folder / f"{case['model']}.safetensors")
    model.load_state_dict(state, strict=case["model"] != "gpt2")
    if case["model"] == "resnet18":
        model = model.to(memory_format=memory_format)
    net = DistributedDataParallel(model) if world > 1 else model
    o = case["optimizer"]
    if o["name"] == "sgd":
        optimizer = torch.optim.SGD(net.parameters(), lr=o["lr"], momentum=o.get("momentum", 0),
                                    weight_decay=o.get("weight_decay", 0), nesterov=o.get("nesterov", False))
    else:
        kind = torch.optim.Adam if o["name"] == "adam" else torch.optim.AdamW
        optimizer = kind(net.parameters(), lr=o["lr"], weight_decay=o["weight_decay"])
    scaler = torch.amp.GradScaler("cpu", enabled="scale" in case, init_scale=case.get("scale", 1.0),
                                  growth_interval=case.get("interval", 1))
    x, y = samples(folder, case)
    batch, accumulate = case["batch"], case.get("accumulate", 1)
    mine = list(range(rank, len(x), world))  # DistributedSampler without shuffling
    result = []
    for step in range(STEPS):
        total, scale = 0.0, scaler.get_scale()
        before = net.parameters().__next__().detach().clone()
        for micro in range(accumulate):
            at = (step * accumulate + micro) * batch
            pick = mine[at:at + batch]
            inputs = x[pick].contiguous(memory_format=memory_format) if x.dim() == 4 else x[pick]
            sync = micro == accumulate - 1
            if world > 1:
                net.require_backward_grad_sync = sync  # what no_sync() sets
            dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(case.get("dtype"))
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                out = net(inputs)
                logits = out.logits if case["model"] == "gpt2" else out
                loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y[pick].reshape(-1),
                                       label_smoothing=case.get("smoothing", 0.0)) / accumulate
            scaler.scale(loss).backward()
            total += loss.item()
        if o.get("clip_grad_norm"):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), o["clip_grad_norm"])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        mean = torch.tensor(total, dtype=torch.float64)
        if world > 1:
            dist.all_reduce(mean)
            mean /= world
        result.append(dict(loss=mean.item(), scale=scale,
                           skipped=bool(torch.equal(before, net.parameters().__next__()))))
    return result, model


def save(folder, name, world, steps, model):
    (folder / f"{name}.torch-{world}.json").write_text(json.dumps(steps))
    save_file({k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"},
              folder / f"{name}.torch-{world}.safetensors")


def main():
    what, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    if what == "prepare":
        return prepare(folder)
    cases = {name: CASES[name] for name in sys.argv[3:]}
    if what == "resnet_noise":
        runs = []
        for threads, memory_format in ((1, torch.contiguous_format), (1, torch.channels_last), (2, torch.channels_last)):
            torch.set_num_threads(threads)
            for name, case in cases.items():
                steps, model = train(folder, case, memory_format=memory_format)
                runs.append([s["loss"] for s in steps])
                if len(runs) == 1:
                    save(folder, name, 1, steps, model)
        noise = max(abs(a - b) for one in runs for a, b in zip(runs[0], one))
        (folder / "noise.json").write_text(json.dumps(noise))
        return None
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if world > 1:
        dist.init_process_group("gloo")
    for name, case in cases.items():
        steps, model = train(folder, case, rank, world)
        if rank == 0:
            save(folder, name, world, steps, model)
    if world > 1:
        dist.destroy_process_group()
    return None


if __name__ == "__main__":
    main()
