"""Initialises the process group in the given way (env, tcp or store) and all-reduces.

With an explicit store, twice, under a prefix each. With env and tcp once only: torch gives a second default group the
keys of the first, and then either rank may read the other's old address and wait for ever (seen, in torch 2.15).
"""
import os
import pathlib
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

output, how = pathlib.Path(sys.argv[1]), sys.argv[2]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
assert dist.is_torchelastic_launched()

for turn in range(2 if how == "store" else 1):
    if how == "env":
        dist.init_process_group("gloo", init_method="env://")
    elif how == "tcp":
        dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=world)
    else:
        # Every rank is a client: the agent serves the store.
        store = dist.TCPStore(address, port, world, is_master=False, timeout=timedelta(seconds=60))
        prefixed = dist.PrefixStore(f"turn{turn}", store)
        dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=world)
    value = torch.tensor([float(rank + 1)])
    dist.all_reduce(value)
    assert value.item() == world * (world + 1) / 2, value
    dist.barrier()
    dist.destroy_process_group()
(output / f"rank{rank}").write_text("ok\n")
