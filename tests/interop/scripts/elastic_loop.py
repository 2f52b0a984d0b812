"""Sums ones over all ranks again and again until a file `stop` appears; notes each world that it worked in.

argv: output folder. Rank 0 appends "world restart_count" to `worlds` once the first sum of a world is right.
"""
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

output = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
first = True
while True:
    # Two values in one sum: how many we are, and whether rank 0 has seen the stop file.
    state = torch.tensor([1.0, float(rank == 0 and (output / "stop").exists())])
    dist.all_reduce(state)
    assert state[0].item() == world, state
    if first and rank == 0:
        with open(output / "worlds", "a") as stream:
            stream.write(f"{world} {os.environ['TORCHELASTIC_RESTART_COUNT']}\n")
    first = False
    if state[1].item() > 0:
        break
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
