"""torch's own TCPStore server (libuv), for comparison: prints "port N", serves until stdin ends."""
import resource
import sys

from torch.distributed import TCPStore

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv="--legacy" not in sys.argv)
print("port", store.port, flush=True)
sys.stdin.read()
