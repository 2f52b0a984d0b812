"""FSDP2 over a DeviceMesh with distributed checkpoints: trains 6 steps, one rank dies after the checkpoint of step 3 in
the first attempt, the second one loads it. argv: folder."""
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

folder = pathlib.Path(sys.argv[1])
mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
first = 0
if (folder / "step3" / ".metadata").exists():
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": torch.tensor(0)}
    dcp.load(state, checkpoint_id=folder / "step3")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    first = int(state["step"])
generator = torch.Generator().manual_seed(rank)
for step in range(first, 6):
    x = torch.randn(4, 8, generator=generator)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step + 1 == 3:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments, "step": torch.tensor(3)}, checkpoint_id=folder / "step3")
        if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print(f"rank {rank} did steps {first}..5", flush=True)
dist.destroy_process_group()
