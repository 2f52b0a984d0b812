"""meet.py BINARY_DIR N: N ddprun processes on one host meet through a daemon. Prints the milliseconds from the start of
the first process to the end of the last; each starts one /bin/true."""
import socket
import subprocess
import sys
import time

folder, count = sys.argv[1], int(sys.argv[2])
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
daemon = subprocess.Popen([f"{folder}/ddprun-rendezvous", "--port", str(port), "--address", "127.0.0.1"],
                          stderr=subprocess.PIPE, text=True)
try:
    daemon.stderr.readline()  # it serves
    begin = time.monotonic()
    agents = [subprocess.Popen([f"{folder}/ddprun", f"--nnodes={count}", "--nproc-per-node=1", "--rdzv-backend=c10d",
                                f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=meet", "--rdzv-conf=is_host=0",
                                "--no-python", "/bin/true"], stderr=subprocess.DEVNULL) for _ in range(count)]
    codes = [agent.wait() for agent in agents]
    took = time.monotonic() - begin
finally:
    daemon.kill()
    daemon.wait()
if any(codes):
    sys.exit(1)
print(f"{took * 1000:.1f}")
