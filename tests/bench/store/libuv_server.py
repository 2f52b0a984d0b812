"""torch's own TCPStore server, libuv or --legacy, for comparison: prints "port N", serves until stdin ends (--stay: a signal)."""
import resource
import signal
import sys

from torch.distributed import TCPStore

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv="--legacy" not in sys.argv)
print("port", store.port, flush=True)
if "--stay" in sys.argv:
    signal.pause()
sys.stdin.read()
