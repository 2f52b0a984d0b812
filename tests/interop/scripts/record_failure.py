"""A script with torch's own @record: rank 1 raises after the process group works, rank 0 waits for it."""
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("the learning rate fell into the sea")
    dist.barrier()


if __name__ == "__main__":
    main()
