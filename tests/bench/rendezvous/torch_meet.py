"""torch_meet.py N: N processes, each with torch imported before the clock starts, meet through torch's c10d rendezvous.
Prints the milliseconds from the common start to the last that has its rank."""
import multiprocessing
import socket
import sys
import time

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


def meet(index, count, port, gate, times):
    parameters = RendezvousParameters(backend="c10d", endpoint=f"127.0.0.1:{port}", run_id="meet", min_nodes=count,
                                      max_nodes=count, is_host=index == 0)
    gate.wait()
    backend, store = create_backend(parameters)
    handler = create_handler(store, backend, parameters)
    handler.next_rendezvous()
    times.put(time.monotonic())
    gate.wait()  # the host's store must outlive the others


if __name__ == "__main__":
    count = int(sys.argv[1])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    gate, times = context.Barrier(count + 1), context.Queue()
    processes = [context.Process(target=meet, args=(i, count, port, gate, times)) for i in range(count)]
    for process in processes:
        process.start()
    gate.wait()
    begin = time.monotonic()
    last = max(times.get(timeout=300) for _ in range(count))
    print(f"{(last - begin) * 1000:.1f}", flush=True)
    gate.wait()
    for process in processes:
        process.join(10)
        if process.is_alive():
            process.kill()
