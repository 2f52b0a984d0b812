"""By which addresses nodes find each other and their workers the store: localhost on the node that serves, names that
mean other things on other hosts, link-local addresses. On hosts in network namespaces. Root only."""
import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from rdzv_hosts import Hosts, OnHosts  # noqa: E402
from rdzv_support import BIN, main, poll  # noqa: E402

# Says what it was given, and whether a store answers there (a ping would need its whole protocol; a connection does).
WORKER = """
import os, socket
e = os.environ
try:
    socket.create_connection((e["MASTER_ADDR"], int(e["MASTER_PORT"])), 20).close()
    there = "served"
except OSError as error:
    there = str(error)
print(e["RANK"], e["WORLD_SIZE"], e["MASTER_ADDR"], there, flush=True)
import time
time.sleep(1)
"""
_ports = itertools.count(29500)


class NetworkAddresses(OnHosts):
    def make_hosts(self, number):
        return Hosts(2, number)

    def setUp(self):
        super().setUp()
        (self.dir / "say.py").write_text(WORKER)
        self.port = next(_ports)

    def launch(self, host, *flags, hosts_file=None):
        prefix = list(self.hosts.on(host))
        if hosts_file is not None:
            path = self.dir / f"hosts{host}"
            path.write_text("127.0.0.1 localhost\n" + hosts_file)
            prefix += ["unshare", "-m", "sh", "-c", f'mount --bind {path} /etc/hosts && exec "$@"', "sh"]
        return self.start(f"n{host}", BIN / "ddprun", "--nnodes=2", "--rdzv-conf=join_timeout=30", *flags,
                          self.dir / "say.py", prefix=prefix)

    def static(self, host, address, **more):
        return self.launch(host, f"--node-rank={host - 1}", f"--master-addr={address}", f"--master-port={self.port}", **more)

    def c10d(self, host, address, *flags):
        return self.launch(host, "--rdzv-backend=c10d", f"--rdzv-endpoint={address}:{self.port}", *flags)

    def masters(self, *nodes):
        """What each node's worker was given, after all have reached it."""
        for node in nodes:
            self.assertEqual(node.wait(), 0, node.errors())
        said = [node.out.read_text().split(maxsplit=3) for node in nodes]
        self.assertEqual(sorted(words[0] for words in said), ["0", "1"])
        self.assertEqual([words[3] for words in said], ["served\n"] * 2, said)
        return [words[2] for words in said]

    def test_localhost_on_the_node_that_serves(self):
        nodes = [self.static(1, "localhost"), self.static(2, self.hosts.ip(1))]
        self.assertEqual(self.masters(*nodes), [self.hosts.ip(1)] * 2)

    def test_all_addresses_on_the_node_that_serves(self):
        nodes = [self.static(1, "0.0.0.0"), self.static(2, self.hosts.ip(1))]
        self.assertEqual(self.masters(*nodes), [self.hosts.ip(1)] * 2)

    def test_a_loopback_address_and_a_service_name(self):
        nodes = [self.static(1, "127.0.0.1"),
                 self.static(2, "train-master", hosts_file=f"{self.hosts.ip(1)} train-master\n")]
        self.assertEqual(self.masters(*nodes), [self.hosts.ip(1)] * 2)

    def test_a_name_that_all_know_stays_a_name(self):
        line = f"{self.hosts.ip(1)} train-node-0-0.train\n"
        nodes = [self.static(host, "train-node-0-0.train", hosts_file=line) for host in (1, 2)]
        self.assertEqual(self.masters(*nodes), ["train-node-0-0.train"] * 2)

    def test_a_name_that_is_loopback_at_home_becomes_an_address(self):
        nodes = [self.static(1, "master", hosts_file="127.0.1.1 master\n"),
                 self.static(2, "master", hosts_file=f"{self.hosts.ip(1)} master\n")]
        self.assertEqual(self.masters(*nodes), [self.hosts.ip(1)] * 2)

    def test_a_name_that_its_own_host_does_not_know(self):
        nodes = [self.static(1, "master", hosts_file=""),
                 self.static(2, "master", hosts_file=f"{self.hosts.ip(1)} master\n")]
        self.assertEqual(self.masters(*nodes), [self.hosts.ip(1)] * 2)

    def test_c10d_with_localhost_where_it_is_served(self):
        one = self.c10d(1, "localhost")
        poll("it serves", lambda: "hosting" in one.errors())
        given = self.masters(one, self.c10d(2, self.hosts.ip(1)))
        self.assertEqual(len(set(given)), 1)
        self.assertIn(given[0], (self.hosts.ip(1), self.hosts.ip(2)))

    def test_a_node_that_calls_itself_localhost_is_reached_where_it_comes_from(self):
        nodes = [self.c10d(1, self.hosts.ip(1), "--node-rank=1"),
                 self.c10d(2, self.hosts.ip(1), "--node-rank=0", "--local-addr=localhost")]
        self.assertEqual(self.masters(*nodes), [self.hosts.ip(2)] * 2)

    def test_a_link_local_address_has_each_hosts_own_zone(self):
        do, second = self.hosts._do, self.hosts.ns(2)
        do("ip", "-n", second, "link", "set", "eth0", "down")
        do("ip", "-n", second, "link", "set", "eth0", "name", "ib0", "up")

        def link_local():
            words = do("ip", "-n", self.hosts.ns(1), "-6", "addr", "show", "dev", "eth0", "scope", "link", "-tentative").stdout
            return words.partition("inet6 ")[2].partition("/")[0]
        if pathlib.Path("/proc/sys/net/ipv6").exists() is False:
            self.skipTest("no IPv6 on this machine")
        address = poll("the address is there", link_local)
        poll("the other one too", lambda: "inet6" in do("ip", "-n", second, "-6", "addr", "show", "dev", "ib0", "-tentative").stdout)
        nodes = [self.c10d(1, f"[{address}%eth0]"), self.c10d(2, f"[{address}%ib0]")]
        given = self.masters(*nodes)
        self.assertTrue(given[0].endswith("%eth0") and given[1].endswith("%ib0"), given)
        self.assertEqual(given[0].partition("%")[0], given[1].partition("%")[0])
        nodes = [self.static(host, f"{address}%{zone}") for host, zone in ((1, "eth0"), (2, "ib0"))]
        for node in nodes:
            self.assertEqual(node.wait(), 0, node.errors())
        self.assertIn(f"0 2 {address}%eth0 served", nodes[0].out.read_text())
        self.assertIn(f"1 2 {address}%ib0 served", nodes[1].out.read_text())


if __name__ == "__main__":
    main()
