"""The same training as trainer_bench in PyTorch DDP over Gloo; rank 0 prints the same JSON line.

Started by trainer_bench.py through torchrun or alone (a world of one without DDP).
    trainer_peer.py MODEL BATCH SECONDS
"""
import time

import json
import os
import resource
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, c // self.heads).transpose(1, 2)
                   for p in self.c_attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(n, t, c))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def build(name):
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)), \
            lambda n: torch.randn(n, 784), 10, ()
    if name == "gpt2":
        return Gpt(65, 256, 6, 6, 384), lambda n: torch.randint(65, (n, 256)), 65, (256,)
    from torchvision.models import resnet18
    if name == "resnet18":
        model, size, classes = resnet18(), 224, 1000
    else:
        model, size, classes = resnet18(num_classes=10), 32, 10
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    model = model.to(memory_format=torch.channels_last)
    return model, lambda n: torch.randn(n, 3, size, size).to(memory_format=torch.channels_last), classes, ()


def process_age():
    """Seconds since this process began (field 22 of its stat)."""
    with open("/proc/self/stat") as f:
        started = int(f.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    with open("/proc/uptime") as f:
        return float(f.read().split()[0]) - started


def main():
    name, batch, budget = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    model, make_input, classes, extra = build(name)
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    if name == "gpt2":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = make_input(batch), torch.randint(classes, (batch, *extra))
    times, cpu, first = [], [], None
    ready, ready_cpu = process_age(), time.process_time()
    start = time.perf_counter()
    while True:
        begin, used = time.perf_counter(), time.process_time()
        loss = F.cross_entropy(model(x).reshape(-1, classes), y.reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        times.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
        if first is None:
            first = process_age()
        stop = torch.tensor(1 if time.perf_counter() - start > budget and len(times) > 3 else 0)
        if world > 1:
            torch.distributed.broadcast(stop, 0)
        if stop:
            break
    if world > 1:
        torch.distributed.barrier()
    if rank == 0:
        times, cpu = sorted(times[1:]), sorted(cpu[1:])
        samples = batch * world
        print(json.dumps({"who": "torch", "model": name, "ranks": world, "steps": len(times),
                          "best_ms": times[0] * 1e3, "median_ms": times[len(times) // 2] * 1e3,
                          "samples_per_s_best": samples / times[0],
                          "samples_per_s_median": samples / times[len(times) // 2],
                          "cpu_ms": cpu[len(cpu) // 2] * 1e3, "ready_s": ready,
                          "ready_cpu_s": ready_cpu, "first_step_s": first, "loss": value,
                          "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                          "kernels": f"torch {torch.__version__}, {threads} threads"}))
    if world > 1:
        torch.distributed.destroy_process_group()


main()
