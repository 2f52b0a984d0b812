"""A slow, lossy, cuttable network between namespaces, where the kernel has no netem. Root and /dev/net/tun only.

    netns_link.py DEVICE SEED NAMESPACE=ADDRESS ...

One process opens a tun device in each namespace, keeps the descriptors, and carries IPv4 packets between them through
a queue in time. It stays in the namespace in which it was started, so no `ip netns pids` of a host names it.

Orders, one a line on stdin; each is answered by one line on stdout ("ok", or "error: ..."), when it is in force:
    path FROM TO DELAY_MS JITTER_MS LOSS_PERCENT    one direction; FROM and TO are addresses or *
    open ADDRESS NAMESPACE                          (again) a device in this namespace, with this address
    counts                                          "ok carried=N lost=N"
End of stdin: it ends, and the devices go with it. Loss 100 is a cut: nobody gets FIN, RST or ICMP. Each packet's delay
is DELAY plus a random part of JITTER, so packets overtake each other as on a real path.
"""
import ctypes
import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x0001 | 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


def enter(descriptor):
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def open_device(namespace, device):
    """A tun device in `namespace`: its descriptor works from outside of it too."""
    with open("/proc/self/ns/net", "rb") as home, open(f"/run/netns/{namespace}", "rb") as there:
        enter(there.fileno())
        try:
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN_NO_PI))
        finally:
            enter(home.fileno())
    return fd


def ip(*words):
    env = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    subprocess.run(["ip", *words], check=True, env=env)


class Link:
    def __init__(self, device, seed):
        self.device, self.random = device, random.Random(seed)
        self.selector = selectors.DefaultSelector()
        self.devices = {}  # address as 4 bytes -> descriptor
        self.known = set()  # addresses that had a device once
        self.paths = {}    # (source, target) -> (delay s, jitter s, loss 0..1)
        self.queue = []    # (due, number, descriptor's address, packet)
        self.number = self.carried = self.lost = 0

    def open(self, address, namespace):
        key = bytes(map(int, address.split(".")))
        self.shut(key)
        fd = open_device(namespace, self.device)
        ip("-n", namespace, "addr", "add", f"{address}/24", "dev", self.device)
        ip("-n", namespace, "link", "set", self.device, "up")
        self.devices[key] = fd
        self.known.add(key)
        self.selector.register(fd, selectors.EVENT_READ, key)

    def shut(self, key):
        if key in self.devices:
            self.selector.unregister(self.devices[key])
            os.close(self.devices.pop(key))

    def obey(self, line):
        verb, *words = line.split()
        if verb == "path":
            sources, targets = ([bytes(map(int, w.split(".")))] if w != "*" else self.known for w in words[:2])
            delay, jitter, loss = map(float, words[2:])
            for source in sources:
                for target in targets:
                    self.paths[source, target] = (delay / 1000, jitter / 1000, loss / 100)
            return "ok"
        if verb == "open":
            self.open(*words)
            return "ok"
        if verb == "counts":
            return f"ok carried={self.carried} lost={self.lost}"
        return f"error: unknown order {verb}"

    def take(self, fd, address):
        for _ in range(256):
            try:
                packet = os.read(fd, 65536)
            except BlockingIOError:
                return
            except OSError:  # its namespace has gone: no longer to be asked
                self.shut(address)
                return
            if len(packet) < 20 or packet[0] >> 4 != 4:
                continue
            source, target = packet[12:16], packet[16:20]
            delay, jitter, loss = self.paths.get((source, target), (0, 0, 0))
            if target not in self.devices or self.random.random() < loss:
                self.lost += 1
                continue
            self.number += 1
            due = time.monotonic() + delay + jitter * self.random.random()
            heapq.heappush(self.queue, (due, self.number, target, packet))

    def deliver(self):
        while self.queue and self.queue[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(self.queue)
            if target not in self.devices:
                self.lost += 1
                continue
            try:
                os.write(self.devices[target], packet)
                self.carried += 1
            except OSError:  # the host is down
                self.lost += 1

    def run(self):
        os.set_blocking(0, False)
        self.selector.register(0, selectors.EVENT_READ, None)
        pending = b""
        while True:
            patience = max(0.0, self.queue[0][0] - time.monotonic()) if self.queue else None
            for key, _ in self.selector.select(patience):
                if key.fd != 0:
                    self.take(key.fd, key.data)
                    continue
                got = os.read(0, 4096)
                if not got:
                    return
                *lines, pending = (pending + got).split(b"\n")
                for line in lines:
                    try:
                        answer = self.obey(line.decode())
                    except (OSError, ValueError, subprocess.CalledProcessError) as error:
                        answer = f"error: {error}"
                    print(answer, flush=True)
            self.deliver()


def main():
    device, seed, *hosts = sys.argv[1:]
    link = Link(device, int(seed))
    for host in hosts:
        namespace, _, address = host.partition("=")
        link.open(address, namespace)
    print("ok", flush=True)
    link.run()


if __name__ == "__main__":
    main()
