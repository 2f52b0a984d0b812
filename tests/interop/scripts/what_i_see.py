"""Writes what torch.distributed and its elastic helpers say about this worker; initialises nothing unless asked."""
import json
import os
import pathlib
import sys

import torch.distributed as dist
from torch.distributed.elastic.utils.distributed import get_free_port  # noqa: F401: must import without a job

seen = {
    "launched": dist.is_torchelastic_launched(),
    "argv": sys.argv[2:],
    "unbuffered": sys.stdout.write_through,
    "local_rank": os.environ["LOCAL_RANK"],
    "env": {k: v for k, v in sorted(os.environ.items())
            if k in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME",
                     "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT",
                     "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")},
}
pathlib.Path(sys.argv[1], f"seen{os.environ['RANK']}.json").write_text(json.dumps(seen, indent=1, sort_keys=True))
