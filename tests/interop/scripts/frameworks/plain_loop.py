"""The shape of nanoGPT's script: RANK in the environment decides on DDP, key=value arguments, gradient accumulation by
hand, rank 0 saves; with init_from=resume after a crash. argv: key=value ..."""
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

settings = {"out": "out", "steps": 6, "accumulate": 4}
for word in sys.argv[1:]:
    key, _, value = word.lstrip("-").partition("=")
    settings[key] = type(settings[key])(value)
ddp = int(os.environ.get("RANK", -1)) != -1
rank, world = 0, 1
if ddp:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert settings["accumulate"] % world == 0
    settings["accumulate"] //= world
path = os.path.join(settings["out"], "ckpt.pt")
os.makedirs(settings["out"], exist_ok=True)
torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
first = 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
raw = model
if ddp:
    model = DistributedDataParallel(model)
for step in range(first, settings["steps"]):
    for micro in range(settings["accumulate"]):
        if ddp:
            model.require_backward_grad_sync = micro == settings["accumulate"] - 1
        loss = model(torch.randn(4, 8)).square().mean() / settings["accumulate"]
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if rank == 0:
        torch.save({"model": raw.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, path + ".new")
        os.replace(path + ".new", path)
    if ddp:
        dist.barrier()
    if step + 1 == 3 and rank == world - 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    print(f"steps {first}..{settings['steps']} world {world}", flush=True)
if ddp:
    dist.destroy_process_group()
