"""Four hosts on a slow, lossy network (netns_link.py): every phase of a round, spikes, one-way loss, cuts in each phase.

50 to 200 ms each way with 3 % loss is worse than any network a job should run on; what is checked is that it ends with
one world or a reason, and never with two worlds. Root and /dev/net/tun only.
"""
import pathlib
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from rdzv_hosts import CONF, LEASE, PORT, OnLinkedHosts  # noqa: E402
from rdzv_support import WORKER, main, poll  # noqa: E402

SLOW = {"delay_ms": 50, "jitter_ms": 150, "loss_percent": 3}
# A lost packet costs a second or so here: a lease of two would end for nothing.
PATIENT = CONF.replace("max_attempt=2", "max_attempt=5")


# Holds a connection to the worker store (VALIDATE, then a PING that is answered); says when it is cut in the second round.
STORE_CLIENT = WORKER.replace("while True:\n", """import socket, struct
store = socket.create_connection((e["MASTER_ADDR"], int(e["MASTER_PORT"])), 30)
store.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE) + b"\\x0d" + struct.pack("<I", 7))
answered = store.recv(4)
store.setblocking(False)
while True:
    try:
        cut = not answered or not store.recv(1)
    except BlockingIOError:
        cut = False
    except OSError:
        cut = True
    if cut and me["round"] > 1:
        open(f"{folder}/cut.{me['rank']}", "w").close()
        end(5)
""")


class SlowNetwork(OnLinkedHosts):
    def test_every_phase_of_a_round(self):
        self.hosts.impair(**SLOW)
        self.serve()
        flags = ("--max-restarts=1",)
        nodes = [self.agent(i, *flags, conf=PATIENT) for i in (1, 2)]
        first = self.wait_for_world(2)
        nodes.append(self.agent(3, *flags, conf=PATIENT))
        second = self.wait_for_world(3, newer_than=first[0]["round"])
        self.order(f"rank1.round{second[0]['round']}", "3")
        third = self.wait_for_world(3, newer_than=second[0]["round"])
        self.assertEqual({w["restart"] for w in third}, {1})
        self.end_well(*nodes)
        self.assert_one_world_at_a_time()
        self.assertNotIn("lost=0", self.hosts.counts())

    def test_delay_spike_longer_than_the_lease(self):
        self.serve()
        nodes = [self.agent(i) for i in (1, 2, 3)]
        first = self.wait_for_world(3)
        self.hosts.impair(3, 4, delay_ms=1500 * LEASE)
        self.hosts.impair(4, 3, delay_ms=1500 * LEASE)
        mine = next(w for w in first if w["host"] == "h3")
        poll("the slow side stopped its worker", lambda: mine["pid"] not in {w["pid"] for w in self.alive()})
        self.hosts.impair(3, 4)
        self.hosts.impair(4, 3)
        self.wait_for_world(3, newer_than=first[0]["round"])
        self.end_well(*nodes)
        self.assert_one_world_at_a_time()

    def test_node_that_hears_but_is_not_heard(self):
        self.serve()
        nodes = [self.agent(i) for i in (1, 2, 3)]
        first = self.wait_for_world(3)
        self.hosts.cut(4, source=3)
        second = self.wait_for_world(2, newer_than=first[0]["round"])
        self.hosts.heal(3)
        self.wait_for_world(3, newer_than=second[0]["round"])
        self.end_well(*nodes)
        self.assert_one_world_at_a_time()

    def test_lost_node_is_known_although_packets_are_lost(self):
        self.hosts.impair(**SLOW)
        self.serve()
        kept = [self.agent(i, conf=PATIENT) for i in (1, 2)]
        lost = self.agent(3, conf=PATIENT)
        first = self.wait_for_world(3)
        lost.signal(signal.SIGKILL)
        self.wait_for_world(2, newer_than=first[0]["round"])
        self.end_well(*kept)
        self.assert_one_world_at_a_time()

    def test_early_worker_on_a_kept_master_port_is_not_cut_off(self):
        # Host 1 has rank 0 and hears of the next round late: workers of host 2 are at its store before it knows.
        self.serve()
        (self.dir / "client.py").write_text(STORE_CLIENT)
        command = [self.dir / "client.py", self.dir, "0.1"]
        flags = ("--master-port=29511", "--max-restarts=1")
        nodes = [self.node(f"h{i}", f"{self.hosts.ip(4)}:{PORT}", f"--node-rank={i - 1}", *flags, conf=PATIENT,
                           prefix=self.hosts.on(i), worker=command) for i in (1, 2)]
        first = self.wait_for_world(2)
        self.assertEqual({w["master"] for w in first}, {f"{self.hosts.ip(1)}:29511"})
        self.hosts.impair(4, 1, delay_ms=700)
        self.order("rank1.round1", "9")
        self.wait_for_world(2, newer_than=1)
        # Host 1 serves the round, or rank 0 would not run; both look at their connections once more.
        now = time.monotonic()
        poll("both workers looked again", lambda: all(w["last"] > now + 0.5 for w in self.workers() if w["round"] > 1))
        self.assertEqual(list(self.dir.glob("cut.*")), [])
        self.end_well(*nodes)

    def test_cut_in_each_phase(self):
        problems = []

        def work(phase):
            case = CutInPhase("run_one")
            case.phase = phase
            outcome = case.run()
            problems.extend(f"{phase}: {text}" for _, text in outcome.failures + outcome.errors)
        threads = [threading.Thread(target=work, args=(phase,)) for phase in CutInPhase.PHASES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [], "\n".join(problems))


class CutInPhase(OnLinkedHosts):
    """Host 3 is cut off in one phase of a round for longer than T_lost, and comes back; the network is slow all the time."""

    PHASES = ("join", "last_call", "running", "restart", "exit_barrier")
    phase = "running"

    def run_one(self):
        self.hosts.impair(delay_ms=20, jitter_ms=40, loss_percent=1)
        self.serve()
        getattr(self, self.phase)()
        self.assert_one_world_at_a_time()

    def wait_for_hosts(self, count):
        poll(f"{count} nodes wait", lambda: self.ctl(f"{self.hosts.ip(4)}:{PORT}", "status",
                                                     prefix=self.hosts.on(4)).stdout.count(" waiting ") == count)

    def back_together(self, nodes, old_round):
        """The others go on without host 3, then with it."""
        second = self.wait_for_world(2, newer_than=old_round)
        self.hosts.heal(3)
        self.wait_for_world(3, newer_than=second[0]["round"])
        self.end_well(*nodes)

    def join(self):
        self.hosts.cut(3)
        nodes = [self.agent(i) for i in (1, 2, 3)]
        self.back_together(nodes, 0)

    def last_call(self):
        conf = CONF.replace("last_call_timeout=1", "last_call_timeout=5")
        nodes = [self.agent(i, nnodes="2:4", conf=conf) for i in (1, 2, 3)]
        self.wait_for_hosts(3)
        self.hosts.cut(3)
        self.back_together(nodes, 0)

    def running(self):
        nodes = [self.agent(i) for i in (1, 2, 3)]
        first = self.wait_for_world(3)
        self.hosts.cut(3)
        self.back_together(nodes, first[0]["round"])

    def restart(self):
        nodes = [self.agent(i, "--max-restarts=3") for i in (1, 2, 3)]
        first = self.wait_for_world(3)
        other = next(w for w in first if w["host"] == "h1")
        self.order(f"rank{other['rank']}.round{other['round']}", "9")
        self.hosts.cut(3)
        self.back_together(nodes, first[0]["round"])

    def exit_barrier(self):
        nodes = [self.agent(i) for i in (1, 2, 3)]
        self.wait_for_world(3)
        self.hosts.cut(3)
        self.end_well(*nodes)  # host 3's workers are done too, so it waits close_timeout for nobody and ends with 0


if __name__ == "__main__":
    main()
