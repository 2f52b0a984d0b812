"""Averages given gradients with DDP over Gloo and one of its comm hooks: ddp_hooks.py HOOK SHAPES STEPS FOLDER.
Reads FOLDER/gradients.RANK (f32); rank 0 writes FOLDER/torchs."""
import gc
import sys

import numpy
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

hook, shapes, steps, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
shapes = [tuple(map(int, shape.split("x"))) for shape in shapes.split(",")]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


class Model(torch.nn.Module):
    """Its gradients are the tensors that it is called with."""

    def __init__(self):
        super().__init__()
        self.tensors = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self, gradients):
        return sum((p * g).sum() for p, g in zip(self.tensors, gradients))


model = DistributedDataParallel(Model())
if hook == "fp16":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif hook == "bf16":
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
else:
    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=int(hook.split(":")[1]),
                                        start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

values = numpy.fromfile(f"{folder}/gradients.{rank}", dtype="<f4").reshape(steps, -1)
results = []
for step in range(steps):
    model.zero_grad(set_to_none=True)
    pieces, at = [], 0
    for shape in shapes:
        count = int(numpy.prod(shape))
        pieces.append(torch.from_numpy(values[step, at:at + count].reshape(shape).copy()))
        at += count
    model(pieces).backward()
    results.append(numpy.concatenate([p.grad.numpy().reshape(-1) for p in model.parameters()]))
if rank == 0:
    numpy.stack(results).astype("<f4").tofile(f"{folder}/torchs")
dist.barrier()
del model, pieces
gc.collect()  # so that no thread of the group outlives the interpreter (support.py: TORCHS_OWN_ABORT)
dist.destroy_process_group()
