"""Names that nobody can resolve, endpoints that cannot be meant, and where the store of a job of one node listens."""
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from rdzv_support import BIN, RendezvousTest, free_port, main, poll  # noqa: E402

# A host of its own whose one name server takes every question and answers none.
DEAD_DNS = """
ip link set lo up
printf 'nameserver 127.0.0.1\\nsearch a.example b.example\\noptions ndots:5\\n' >"$1/resolv.conf"
mount --bind "$1/resolv.conf" /etc/resolv.conf || exit 77
python3 -c '
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
while True:
    s.recv(4096)
    open(sys.argv[1] + "/asked", "w").close()' "$1" &
shift
"$@" & launcher=$!
echo $launcher
wait $launcher; code=$?
kill %1
exit $code
"""


class Addresses(RendezvousTest):
    def ddprun(self, name, *flags, worker=("true",), prefix=()):
        return self.start(name, BIN / "ddprun", *flags, "--no-python", *worker, prefix=prefix)

    def in_dead_dns(self, *flags):
        if subprocess.run(["unshare", "-rnm", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("needs user, network and mount namespaces")
        node = self.ddprun("node", *flags, prefix=("unshare", "-rnm", "sh", "-c", DEAD_DNS, "sh", self.dir))
        poll("the name is asked for", lambda: (self.dir / "asked").exists() or node.process.poll() is not None)
        if node.process.poll() == 77:
            self.skipTest("cannot mount here")
        return node

    def test_sigterm_ends_a_look_up_at_once(self):
        flags = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=train-0.train:29400")
        for more in ((), ("--rdzv-conf=is_host=0",)):  # who may host looks first
            with self.subTest(more=more):
                (self.dir / "asked").unlink(missing_ok=True)
                node = self.in_dead_dns(*flags, *more)
                launcher = int(node.out.read_text().split()[-1])
                begin = time.monotonic()
                os.kill(launcher, signal.SIGTERM)
                self.assertEqual(node.wait(), 128 + signal.SIGTERM, node.errors())
                self.assertLess(time.monotonic() - begin, 15, "the resolver's own patience is more than 20 s")
                self.assertIn("SIGTERM", node.errors())

    def test_a_dead_name_server_does_not_outlast_join_timeout(self):
        node = self.in_dead_dns("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=train-0.train:29400",
                                "--rdzv-conf=join_timeout=3")
        begin = time.monotonic()
        self.assertEqual(node.wait(), 69, node.errors())
        self.assertLess(time.monotonic() - begin, 12)
        self.assertIn("the name 'train-0.train' is being looked up", node.errors())

    def test_the_store_of_one_node_listens_where_master_addr_says(self):
        say = ["sh", "-c", "echo $MASTER_ADDR; exec python3 -c 'import os, socket;"
               " socket.create_connection((os.environ[\"MASTER_ADDR\"], int(os.environ[\"MASTER_PORT\"])), 10)'"]
        for endpoint, flags, address in (("127.0.0.1", ["--local-addr=127.0.0.9"], "127.0.0.9"),
                                         ("127.0.0.2", [], "127.0.0.2"), ("localhost", [], "127.0.0.1"),
                                         ("127.0.0.1", ["--local-addr=localhost"], "localhost")):
            with self.subTest(endpoint=endpoint, flags=flags):
                node = self.ddprun(f"{endpoint}{len(flags)}", "--rdzv-backend=c10d",
                                   f"--rdzv-endpoint={endpoint}:{free_port()}", *flags, worker=say)
                self.assertEqual(node.wait(), 0, node.errors())
                self.assertEqual(node.out.read_text().splitlines()[-1], address)

    def test_a_default_endpoint_that_cannot_be_meant_is_wrong_use(self):
        for flags, remedy in ((("--node-rank=1",), "--master-addr=HOST"),
                              (("--rdzv-backend=c10d",), "--rdzv-endpoint=HOST[:PORT]")):
            node = self.ddprun("default" + flags[0], "--nnodes=2", *flags)
            self.assertEqual(node.wait(), 2)
            lines = node.errors().splitlines()
            self.assertEqual(len(lines), 1, lines)
            self.assertRegex(lines[0], "2 nodes, and this one is to meet the others at the default.* which is this host")
            self.assertIn(remedy, lines[0])

    def test_a_link_local_endpoint_without_a_zone_is_wrong_use(self):
        node = self.ddprun("zone", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=fe80::1:29500")
        self.assertEqual(node.wait(), 2, node.errors())
        self.assertIn("[fe80::1]:29500 is a link-local address", node.errors())

    def test_who_waits_hears_what_a_loopback_endpoint_means(self):
        node = self.ddprun("alone", "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}",
                           "--rdzv-conf=is_host=0,join_timeout=2")
        self.assertEqual(node.wait(), 69)
        self.assertRegex(node.errors(), r"is a loopback address, which reaches this host only.*--rdzv-endpoint")

    def test_the_serving_node_of_a_static_job_hears_it_too(self):
        node = self.ddprun("static", "--nnodes=2", "--node-rank=0", f"--master-port={free_port()}",
                           "--rdzv-conf=join_timeout=2")
        self.assertEqual(node.wait(), 69, node.errors())
        self.assertRegex(node.errors(), r"rendezvous timed out.*is a loopback address, which reaches this host only.*"
                                        "--master-addr")


if __name__ == "__main__":
    main()
