"""Never two live worlds of one run id: agents that are stopped, workers that take their time, daemons that start anew."""
import json
import os
import pathlib
import signal
import socket
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import rdzv_wire as wire  # noqa: E402
from rdzv_support import BIN, RendezvousTest, free_port, main, poll, running  # noqa: E402
from rdzv_wire import Peer, agent  # noqa: E402

# lease 2 s, T_lost 7 s
SHORT = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"


class OneWorld(RendezvousTest):
    def setUp(self):
        super().setUp()
        self.endpoint = f"127.0.0.1:{free_port()}"

    def serve(self, name="daemon", extra=()):
        return self.daemon(self.endpoint.rpartition(":")[2], name, extra=extra)

    def test_workers_of_a_stopped_agent_are_dead_before_the_rest_goes_on(self):
        self.serve()
        nodes = {n: self.node(n, self.endpoint, nnodes="1:2", conf=SHORT) for n in "ab"}
        first = self.wait_for_world(2)
        stopped = next(w for w in first if w["host"] == "a")
        nodes["a"].signal(signal.SIGSTOP)
        second = self.wait_for_world(1, newer_than=first[0]["round"])
        self.assertFalse(running(stopped["pid"]), "the stopped agent's worker runs on")
        nodes["a"].signal(signal.SIGCONT)
        third = self.wait_for_world(2, newer_than=second[0]["round"])
        self.assertEqual({w["restart"] for w in third}, {0}, "the guard's kill was counted as a failure")
        self.end_well(*nodes.values())
        self.assert_one_world_at_a_time()

    def test_kill_by_the_guard_is_no_failure_although_the_daemon_died_meanwhile(self):
        daemon = self.serve()
        nodes = {n: self.node(n, self.endpoint, conf=SHORT) for n in "ab"}
        first = self.wait_for_world(2)
        stopped = next(w for w in first if w["host"] == "a")
        nodes["a"].signal(signal.SIGSTOP)
        # Dead before the daemon calls the node lost.
        poll("the guard killed the worker", lambda: not running(stopped["pid"]))
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        nodes["a"].signal(signal.SIGCONT)
        self.serve("daemon2")
        second = self.wait_for_world(2, newer_than=first[0]["round"])
        self.assertEqual({w["restart"] for w in second}, {0})
        self.end_well(*nodes.values())
        self.assert_one_world_at_a_time()

    def test_node_that_hosts_the_rendezvous_may_be_stopped_and_go_on(self):
        node = self.node("alone", self.endpoint, nnodes="1", conf=SHORT)
        (worker,) = self.wait_for_world(1)
        # One that does not host it, and is stopped later, shows when the time is over.
        port = free_port()
        self.daemon(port)
        other = self.node("other", f"127.0.0.1:{port}", nnodes="1", conf=SHORT)
        others = poll("the other's worker", lambda: [w for w in self.alive() if w["host"] == "other"])
        node.signal(signal.SIGSTOP)
        other.signal(signal.SIGSTOP)
        poll("the other's worker is dead", lambda: not running(others[0]["pid"]))
        self.assertTrue(running(worker["pid"]), "nobody else could form a world, and yet the worker was killed")
        node.signal(signal.SIGCONT)
        other.signal(signal.SIGCONT)
        self.end_well(node, other)
        self.assertEqual(len([w for w in self.workers() if w["host"] == "alone"]), 1)

    def test_new_daemon_that_hears_of_fresh_nodes_only_waits_for_the_old_world(self):
        state = ("--state-file", self.dir / "state")
        daemon = self.serve(extra=state)
        old = [self.node(n, self.endpoint, conf=SHORT) for n in "ab"]
        first = self.wait_for_world(2)
        for node in old:  # cut off, as far as anybody can tell
            node.signal(signal.SIGSTOP)
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        self.serve("daemon2", extra=state)
        fresh = [self.node(n, self.endpoint, conf=SHORT) for n in "cd"]
        second = self.wait_for_world(2, newer_than=first[0]["round"])
        self.assertEqual({w["host"] for w in second}, {"c", "d"})
        self.assert_one_world_at_a_time()
        for node in old:
            node.signal(signal.SIGKILL)
            node.wait()
        self.end_well(*fresh)

    def test_state_file_is_written_as_soon_as_that_is_possible_again(self):
        folder, away, job = self.dir / "state.d", self.dir / "away", "job".encode().hex()
        folder.mkdir()
        daemon = self.serve(extra=("--state-file", folder / "state"))
        folder.rename(away)
        node = self.node("a", self.endpoint, nnodes="1", conf=SHORT)
        self.wait_for_world(1)  # jobs go on
        poll("that is said", lambda: "the next one does not know which workers may live" in daemon.errors())
        away.rename(folder)
        poll("the world is in the file", lambda: f" 1 {job}\n" in (folder / "state").read_text())
        poll("that is said", lambda: "the state file is written again" in daemon.errors())
        self.end_well(node)

    def test_a_disk_that_hangs_holds_up_rounds_but_no_heartbeats(self):
        state = self.dir / "state"
        port = int(self.endpoint.rpartition(":")[2])
        daemon = self.serve(extra=("--state-file", state))
        fresh = self.dir / "state.new"
        os.mkfifo(fresh)  # whoever opens it to write waits for a reader

        def beat(peer, sequence):
            peer.send(wire.frame(wire.HEARTBEAT, struct.pack("<QB", sequence, 0)))
            return peer.read()[0]
        with agent(port, "n1") as peer:
            for sequence in range(1, 20):
                self.assertEqual(beat(peer, sequence), wire.HEARTBEAT_ACK, "heard of a round that is not on the disk")
            fresh.unlink()  # the thread still waits: nothing can tell it
            self.assertEqual(peer.read_until(wire.ASSIGNMENT)[0], wire.ASSIGNMENT)
            self.assertIn("the disk of the state file does not answer for 5 s", daemon.errors())
            self.assertEqual(beat(peer, 20), wire.HEARTBEAT_ACK)
            daemon.signal(signal.SIGTERM)
            self.assertEqual(daemon.wait(), 0, "a write that hangs is left behind")

    def test_state_file_of_another_daemon_is_refused(self):
        state = self.dir / "state"
        self.serve(extra=("--state-file", state))
        second = self.start("second", BIN / "ddprun-rendezvous", "--port=0", "--state-file", state)
        self.assertEqual(second.wait(), 1)
        self.assertIn(f"{state} belongs to another daemon", second.errors())

    def test_daemon_that_says_goodbye_slowly_loses_nobody(self):
        state = self.dir / "state"
        port = int(self.endpoint.rpartition(":")[2])
        daemon = self.serve(extra=("--state-file", state))
        peers = [agent(port, f"n{i}", nnodes=(3, 3)) for i in range(3)]
        for peer in peers:
            self.addCleanup(peer.socket.close)
            self.assertEqual(peer.read_until(wire.ASSIGNMENT)[0], wire.ASSIGNMENT)
        before = state.read_text()
        self.assertIn("job".encode().hex(), before)
        # An operator that does not read what it asked for: the goodbye lasts a second.
        operator = Peer(port, wire.OPERATOR).greeted().send(wire.frame(wire.FLIGHT_QUERY, wire.text("job")))
        self.addCleanup(operator.socket.close)
        for peer in peers:
            kind, payload = peer.read_until(wire.FLIGHT_REQUEST)
            peer.send(wire.frame(wire.FLIGHT_REPLY, payload[:8] + wire.text(b"r" * (4 << 20))))
        for peer in peers:  # an answer to what was sent later: the records have been taken
            peer.send(wire.frame(wire.HEARTBEAT, struct.pack("<QB", 1, 0)))
            self.assertEqual(peer.read_until(wire.HEARTBEAT_ACK)[0], wire.HEARTBEAT_ACK)
        daemon.signal(signal.SIGTERM)
        self.assertEqual(peers[0].read_until(wire.SHUTDOWN, wire.RESTART)[0], wire.SHUTDOWN)
        with self.assertRaises(ConnectionRefusedError):
            Peer(port)
        self.assertIsNone(daemon.process.poll(), "the goodbye was over too soon to show anything")
        for peer in peers[1:]:
            peer.socket.close()
        self.assertEqual(daemon.wait(), 0)
        self.assertEqual(state.read_text(), before, "the next daemon would not know of the world that runs")

    def test_port_that_takes_connections_and_closes_them_keeps_no_workers_alive(self):
        daemon = self.serve()
        node = self.node("a", self.endpoint, nnodes="1", conf=SHORT)
        (worker,) = self.wait_for_world(1)
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        with socket.create_server(("127.0.0.1", int(self.endpoint.rpartition(":")[2]))) as door:
            door.settimeout(0.1)

            def ended():
                try:
                    door.accept()[0].close()
                except TimeoutError:
                    pass
                return not running(worker["pid"])
            poll("the worker is dead", ended)
        self.serve("daemon2")
        self.wait_for_world(1, newer_than=worker["round"])
        self.end_well(node)
        self.assert_one_world_at_a_time()

    def test_state_file_that_is_none_is_refused(self):
        state = self.dir / "state"
        state.write_text("hello")
        daemon = self.start("daemon", BIN / "ddprun-rendezvous", "--port=0", "--state-file", state)
        self.assertEqual(daemon.wait(), 2)
        self.assertIn(f"{state}: 'hello' is not what a daemon of this version writes", daemon.errors())

    def test_next_round_waits_for_the_workers_of_a_node_that_leaves(self):
        self.serve()
        slow = self.node("slow", self.endpoint, nnodes="1:2", conf=SHORT, TEST_TERM_DELAY="3")
        other = self.node("other", self.endpoint, nnodes="1:2", conf=SHORT)
        first = self.wait_for_world(2)
        slow.signal(signal.SIGTERM)
        poll("the other hears of it at once", lambda: "round 1 ends: " in other.errors())
        self.wait_for_world(1, newer_than=first[0]["round"])
        self.assertEqual(slow.wait(), 143, slow.errors())
        self.end_well(other)
        self.assert_one_world_at_a_time()

    def test_next_round_waits_for_the_workers_of_a_drained_node(self):
        self.serve()
        slow = self.node("slow", self.endpoint, nnodes="1:2", conf=SHORT, TEST_TERM_DELAY="3")
        poll("it waits", lambda: " waiting " in self.ctl(self.endpoint, "status").stdout)
        number = json.loads(self.ctl(self.endpoint, "status", "--json").stdout)["jobs"][0]["nodes"][0]["node_id"]
        other = self.node("other", self.endpoint, nnodes="1:2", conf=SHORT)
        first = self.wait_for_world(2)
        self.assertEqual(self.ctl(self.endpoint, "drain", number).returncode, 0)
        self.wait_for_world(1, newer_than=first[0]["round"])
        self.assertEqual(slow.wait(), 143, slow.errors())
        self.end_well(other)
        self.assert_one_world_at_a_time()


if __name__ == "__main__":
    main()
