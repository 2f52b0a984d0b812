"""A plain PyTorch DDP script that knows nothing of ddprun: five steps of a small net, then all ranks compare.

argv: output folder; optional --die-once RANK HOW: that rank ends in the first attempt, after the process group works.
"""
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

output = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"]) and world == int(os.environ["WORLD_SIZE"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

torch.manual_seed(rank)  # different on purpose: DDP must broadcast rank 0's parameters
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

if "--die-once" in sys.argv and attempt == 0:
    victim, how = sys.argv[sys.argv.index("--die-once") + 1:][:2]
    dist.barrier()
    if rank == int(victim):
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(int(how))

generator = torch.Generator().manual_seed(100 + rank)
for _ in range(5):
    x = torch.randn(4, 8, generator=generator)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

flat = torch.cat([p.detach().flatten() for p in model.parameters()])
all_flat = [torch.empty_like(flat) for _ in range(world)]
dist.all_gather(all_flat, flat)
assert all(torch.equal(flat, other) for other in all_flat), "the ranks' parameters differ"
(output / f"rank{rank}.attempt{attempt}").write_text(f"world={world} sum={flat.double().sum().item():.9f}\n")
# Nobody tears its connections down while another still reads, and no thread of the group outlives the interpreter
# (support.py: TORCHS_OWN_ABORT).
dist.barrier()
del model
dist.destroy_process_group()
