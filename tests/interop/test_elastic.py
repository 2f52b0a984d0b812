"""A real Gloo job that grows and shrinks. torchrun 2.15 hangs when a node joins a running job, and storms with a spare."""
import signal
import socket

from support import InteropTest


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Elastic(InteropTest):
    def setUp(self):
        super().setUp()
        port = free_port()
        self.daemon = self.start("ddprun-rendezvous", f"--port={port}", "--address=127.0.0.1")
        self.common = [
            "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=grow",
            "--rdzv-conf=last_call_timeout=1,join_timeout=120", "--max-restarts=2"
        ]

    def node(self, nnodes):
        return self.start("ddprun", f"--nnodes={nnodes}", *self.common, self.script("elastic_loop.py"), self.dir)

    def worlds(self):
        file = self.dir / "worlds"
        return [tuple(map(int, line.split())) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for_worlds(self, *sizes):
        def there():
            return [size for size, _ in self.worlds()][-len(sizes):] == list(sizes)
        try:
            self.wait_until(there, f"worlds {sizes}, seen {self.worlds()}", limit=120)
        except AssertionError as error:
            logs = "\n".join(f"--- {r.command[0]} {r.pid}\n{r.err[-3000:]}" for r in self._running)
            self.fail(f"{error}; seen {self.worlds()}\n{logs}")

    def finish(self, *nodes):
        (self.dir / "stop").touch()
        for node in nodes:
            run = node.wait(120)
            self.assertEqual(run.code, 0, run)

    def test_two_nodes_become_three_and_two_again(self):
        first, second = self.node("2:3"), self.node("2:3")
        self.wait_for_worlds(2)
        third = self.node("2:3")
        self.wait_for_worlds(2, 3)
        third.signal(signal.SIGTERM)
        self.wait_for_worlds(2, 3, 2)
        self.assertEqual(third.wait(60).code, 128 + signal.SIGTERM)
        self.finish(first, second)
        self.assertEqual({count for _, count in self.worlds()}, {0}, "a change of nodes is no failure")

    def test_a_node_that_is_killed_is_left_out(self):
        nodes = [self.node("2:3") for _ in range(3)]
        self.wait_for_worlds(3)
        nodes[2].signal(signal.SIGKILL)
        self.wait_for_worlds(3, 2)
        self.finish(nodes[0], nodes[1])

    def test_a_spare_takes_the_place_of_a_lost_node(self):
        nodes = [self.node("2") for _ in range(2)]
        self.wait_for_worlds(2)
        spare = self.node("2")
        self.wait_until(lambda: spare.err, "the spare says that it waits")
        nodes[0].signal(signal.SIGKILL)
        self.wait_for_worlds(2, 2)
        self.finish(nodes[1], spare)
        self.assertEqual(len(self.worlds()), 2, "no storm of restarts")
