"""Hosts in network namespaces for the rendezvous tests: on a bridge, or on a link that delays and loses packets."""
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

from rdzv_support import RendezvousTest, remove_groups

# lease 2 s, T_lost 7 s
CONF = "is_host=0,join_timeout=25,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,close_timeout=5"
LEASE, T_LOST, SLACK = 2, 7, 8
PORT = 29400
_numbers = itertools.count(1)
_lock = threading.Lock()


class Hosts:
    """N hosts 10.84.X.1.. in network namespaces on one bridge. Root only. Impairments are silent: no FIN, no RST."""

    def __init__(self, count, number=0):
        self.base = f"dr{os.getpid() % 100000}x{number}"
        self.net = f"10.84.{number}"
        self.count = count
        self.hub = f"{self.base}h"

    @staticmethod
    def possible():
        if os.geteuid() != 0:
            return "needs root for network namespaces"
        for tool in ("ip", "nft"):
            if shutil.which(tool) is None and not os.path.exists(f"/usr/sbin/{tool}"):
                return f"needs {tool}"
        probe = subprocess.run(["ip", "netns", "add", f"drp{os.getpid()}"], capture_output=True, text=True, check=False,
                               env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"})
        if probe.returncode != 0:
            return "cannot make network namespaces: " + probe.stderr.strip()
        Hosts._do("ip", "netns", "del", f"drp{os.getpid()}")
        return None

    @staticmethod
    def _do(*words, check=True, stdin=None):
        env = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
        done = subprocess.run(words, capture_output=True, text=True, env=env, input=stdin, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(words)}: {done.stderr}")
        return done

    def ns(self, i):
        return f"{self.base}n{i}"

    def up(self):
        self._do("ip", "netns", "add", self.hub)
        self._do("ip", "-n", self.hub, "link", "add", "br0", "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
        self._do("ip", "-n", self.hub, "link", "set", "br0", "up")
        for i in range(1, self.count + 1):
            self._connect(i)

    def _make(self, i):
        self._do("ip", "netns", "add", self.ns(i))
        self._do("ip", "-n", self.ns(i), "link", "set", "lo", "up")

    def _connect(self, i):
        self._make(i)
        self._do("ip", "-n", self.hub, "link", "add", f"v{i}", "type", "veth", "peer", "name", "eth0", "netns", self.ns(i))
        self._do("ip", "-n", self.hub, "link", "set", f"v{i}", "master", "br0", "up")
        self._do("ip", "-n", self.ns(i), "addr", "add", f"{self.net}.{i}/24", "dev", "eth0")
        self._do("ip", "-n", self.ns(i), "link", "set", "eth0", "up")

    def close(self):
        for name in [self.ns(i) for i in range(1, self.count + 1)] + [self.hub]:
            self._kill_in(name)
            self._do("ip", "netns", "del", name, check=False)

    def on(self, i):
        """Words before a command that make it run on host i."""
        return ("/usr/sbin/ip" if os.path.exists("/usr/sbin/ip") else "ip", "netns", "exec", self.ns(i))

    def ip(self, i):
        return f"{self.net}.{i}"

    def cut(self, i, source=None):
        """Drops silently what host i receives (from `source`, or all but loopback), and without source what it sends."""
        where = f"ip saddr {self.ip(source)}" if source else 'iifname "eth0"'
        rules = f"add table inet cut\nadd chain inet cut in {{ type filter hook input priority 0; }}\nadd rule inet cut in {where} drop\n"
        if source is None:
            rules += ("add chain inet cut out { type filter hook postrouting priority 0; }\n"
                      'add rule inet cut out oifname "eth0" drop\n')
        self._do(*self.on(i), "nft", "-f", "-", stdin=rules)

    def heal(self, i):
        self._do(*self.on(i), "nft", "delete", "table", "inet", "cut", check=False)

    def _kill_all(self, i):
        self._kill_in(self.ns(i))

    def _kill_in(self, name):
        killed = set()
        for _ in range(100):
            pids = self._do("ip", "netns", "pids", name, check=False).stdout.split()
            if not pids:
                break
            killed.update(pids)
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.01)
        remove_groups(killed)

    def crash(self, i):
        """A power cut: the link first, then all processes; nothing of it is heard outside."""
        self._do("ip", "-n", self.hub, "link", "set", f"v{i}", "down")
        self._kill_all(i)
        # Sockets of the dead would answer with RST after the link is back: a rebooted host has none of them.
        self._do("ip", "-n", self.hub, "link", "del", f"v{i}")

    def boot(self, i):
        self._do("ip", "netns", "del", self.ns(i))
        self._connect(i)


class LinkedHosts(Hosts):
    """Hosts whose packets go through netns_link.py: delay, jitter and loss for each direction, changed at any time."""

    @staticmethod
    def possible():
        why_not = Hosts.possible()
        if why_not:
            return why_not
        try:
            os.close(os.open("/dev/net/tun", os.O_RDWR))
        except OSError as error:
            return f"needs /dev/net/tun: {error.strerror}"
        return None

    def __init__(self, count, number=0, seed=0):
        super().__init__(count, number)
        self.seed, self.link = seed, None
        self.paths = {}  # (from, to) -> (delay ms, jitter ms, loss percent), cuts apart
        self.cuts = set()

    def up(self):
        for i in range(1, self.count + 1):
            self._make(i)
        hosts = [f"{self.ns(i)}={self.ip(i)}" for i in range(1, self.count + 1)]
        program = pathlib.Path(__file__).with_name("netns_link.py")
        self.link = subprocess.Popen([sys.executable, program, "eth0", str(self.seed), *hosts], text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._answered("start")

    def _answered(self, what):
        answer = self.link.stdout.readline().strip()
        if not answer.startswith("ok"):
            raise AssertionError(f"netns_link.py: {what}: {answer or 'it ended'}")
        return answer

    def _order(self, text):
        self.link.stdin.write(text + "\n")
        self.link.stdin.flush()
        return self._answered(text)

    def close(self):
        if self.link is not None:
            self.link.stdin.close()
            try:
                self.link.wait(10)
            except subprocess.TimeoutExpired:
                self.link.kill()
                self.link.wait()
            self.link.stdout.close()
            self.link = None
        for i in range(1, self.count + 1):
            self._kill_in(self.ns(i))
            self._do("ip", "netns", "del", self.ns(i), check=False)

    def _apply(self, pairs):
        for a, b in pairs:
            delay, jitter, loss = self.paths.get((a, b), (0, 0, 0))
            self._order(f"path {self.ip(a)} {self.ip(b)} {delay} {jitter} {100 if (a, b) in self.cuts else loss}")

    def _pairs(self, a=None, b=None):
        """Directions from a to b; None is everybody."""
        all_hosts = range(1, self.count + 1)
        return [(x, y) for x in all_hosts for y in all_hosts if x != y and a in (None, x) and b in (None, y)]

    def impair(self, a=None, b=None, delay_ms=0.0, jitter_ms=0.0, loss_percent=0.0):
        """Packets from host a to host b (None: all) from now on. One direction only."""
        for pair in self._pairs(a, b):
            self.paths[pair] = (delay_ms, jitter_ms, loss_percent)
        self._apply(self._pairs(a, b))

    def cut(self, i, source=None):
        pairs = self._pairs(source, i) if source else self._pairs(i, None) + self._pairs(None, i)
        self.cuts.update(pairs)
        self._apply(pairs)

    def heal(self, i):
        pairs = self._pairs(i, None) + self._pairs(None, i)
        self.cuts.difference_update(pairs)
        self._apply(pairs)

    def crash(self, i):
        self.cut(i)
        self._kill_all(i)

    def boot(self, i):
        self._do("ip", "netns", "del", self.ns(i))
        self._make(i)
        self._order(f"open {self.ip(i)} {self.ns(i)}")
        self.heal(i)

    def counts(self):
        return self._order("counts")


class OnHosts(RendezvousTest):
    """Four hosts; the daemon's is the last one by default."""

    hosts_class = Hosts
    seed = 1

    def setUp(self):
        with _lock:
            why_not = self.hosts_class.possible()
            number = next(_numbers) % 250
        if why_not:
            self.skipTest(why_not)
        super().setUp()
        self.hosts = self.make_hosts(number)
        self.addCleanup(self.hosts.close)
        self.hosts.up()

    def make_hosts(self, number):
        return self.hosts_class(4, number)

    def serve(self, host=4, name="daemon", extra=()):
        return self.daemon(PORT, name, prefix=self.hosts.on(host), extra=extra)

    def agent(self, host, *flags, name=None, nnodes="2:3", conf=CONF, **env):
        return self.node(name or f"h{host}", f"{self.hosts.ip(4)}:{PORT}", "--shutdown-timeout=5", *flags, nnodes=nnodes,
                         conf=conf, prefix=self.hosts.on(host), **env)


class OnLinkedHosts(OnHosts):
    hosts_class = LinkedHosts

    def make_hosts(self, number):
        return LinkedHosts(4, number, self.seed)
