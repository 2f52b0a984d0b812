"""Operators and peers that lie, over real sockets: long answers, slow readers, flight records, who may speak for whom."""
import json
import os
import pathlib
import resource
import select
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import rdzv_wire as wire  # noqa: E402
from rdzv_support import BIN, LIMIT, RendezvousTest, free_port, hello, main, poll  # noqa: E402
from rdzv_wire import Peer, agent  # noqa: E402


class WithDaemon(RendezvousTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        # A sanitizer keeps what was freed; here memory is measured.
        options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"
        self.server = self.daemon(self.port, ASAN_OPTIONS=options)

    def keep(self, peer):
        self.addCleanup(peer.socket.close)
        return peer

    def idle(self):
        """Waits until the daemon has done what it can do now: it uses no CPU any more."""
        def used():
            with open(f"/proc/{self.server.pid}/stat") as f:
                return f.read().rpartition(")")[2].split()[11:13]

        def quiet():
            first = used()
            time.sleep(0.3)
            return used() == first
        poll("the daemon has nothing to do", quiet)


class ManyNodes(WithDaemon):
    def test_six_thousand_nodes(self):
        count = 6_000
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < count + 500:
            self.skipTest(f"needs {count + 500} descriptors, {hard} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        hosts = [f"host-{i}-".ljust(250, "x") for i in range(count)]
        for i, host in enumerate(hosts):
            self.keep(Peer(self.port, opening=hello())).greeted().send(
                wire.join(f"n{i}".ljust(250, "y"), host=host, nnodes=(count + 1, count + 1), attempts=120))
        here = f'"waiting_for": "{count} of {count + 1} nodes are here'

        def whole():
            answer = self.ctl(self.endpoint, "status", "job", "--json").stdout
            return answer if here in answer else None
        answer = poll("all are here", whole)
        self.assertGreater(len(answer), 4 << 20)
        nodes = json.loads(answer)["jobs"][0]["nodes"]
        self.assertEqual({n["host"] for n in nodes}, set(hosts))
        roster = self.ctl(self.endpoint, "roster", "job").stdout.splitlines()
        self.assertEqual(len(roster), count + 1)
        self.assertEqual(self.ctl(self.endpoint, "roster", "nothing").returncode, 1)
        # An operator who reads nothing for a while gets everything in the end.
        slow = self.keep(Peer(self.port, wire.OPERATOR).greeted())
        slow.send(wire.frame(wire.STATUS_REQUEST, wire.text("job")))
        self.idle()  # it does not read: that is the case
        parts = []
        while True:
            kind, payload = slow.read()
            self.assertIn(kind, (wire.REPLY, wire.REPLY_PART))
            parts.append(wire.read_text(payload, 1 if kind == wire.REPLY else 0)[0])
            if kind == wire.REPLY:
                break
        self.assertEqual(len(json.loads(b"".join(parts))["jobs"][0]["nodes"]), count)


class Operators(WithDaemon):
    def members(self, count, **more):
        """Agents that have their Assignment of one round."""
        peers = [self.keep(agent(self.port, f"n{i}", nnodes=(count, count), **more)) for i in range(count)]
        for peer in peers:
            self.assertEqual(peer.read_until(wire.ASSIGNMENT)[0], wire.ASSIGNMENT)
        return peers

    def ask_flight(self):
        """ddpctl flight in another thread: a function that waits for its end."""
        answers = []
        thread = threading.Thread(target=lambda: answers.append(self.ctl(self.endpoint, "flight", "job")))
        thread.start()

        def result():
            thread.join(LIMIT)
            return answers[0]
        return result

    @staticmethod
    def flight_id(peer):
        kind, payload = peer.read_until(wire.FLIGHT_REQUEST)
        assert kind == wire.FLIGHT_REQUEST, kind
        return struct.unpack_from("<Q", payload)[0]

    def test_who_opens_and_says_nothing_is_ended(self):
        silent = [self.keep(Peer(self.port).greeted()), self.keep(Peer(self.port, wire.OPERATOR).greeted()),
                  self.keep(Peer(self.port, opening=hello()[:5])), self.keep(Peer(self.port).greeted().send(b"\7\0"))]
        for peer in silent:
            self.assertEqual(peer.read_until()[0], None)
        self.assertRegex(self.server.errors(), "did not say in time whose it is|sent no Join within 5000 ms")
        self.assertEqual(self.ctl(self.endpoint, "status").returncode, 0)

    def test_one_connection_speaks_for_one_node(self):
        with agent(self.port, "a", nnodes=(2, 2)) as peer:
            peer.send(wire.join("b", nnodes=(2, 2)))
            self.assertEqual(peer.read_until()[0], None)
        poll("it is told", lambda: "one connection speaks for a and b" in self.server.errors())

    def test_a_late_message_of_an_older_connection_does_not_count(self):
        old = self.keep(Peer(self.port).greeted())
        new = self.keep(agent(self.port, "a", connection=2))
        self.assertEqual(new.read_until(wire.ASSIGNMENT)[0], wire.ASSIGNMENT)
        old.send(wire.join("a", connection=1))
        self.assertEqual(old.read_until()[0], None)
        new.send(wire.frame(wire.HEARTBEAT, struct.pack("<QB", 7, 0)))
        self.assertEqual(new.read_until(wire.HEARTBEAT_ACK)[0], wire.HEARTBEAT_ACK)

    def test_store_clients_leave_descriptors_for_agents(self):
        port = free_port()
        server = self.daemon(port, "small", prefix=("sh", "-c", 'ulimit -n 128; exec "$0" "$@"'))
        validate = b"\0" + struct.pack("<I", 0x3C85F7CE)
        for _ in range(150):
            try:
                self.keep(Peer(port, opening=validate))
            except OSError:
                pass  # refused before it had said what it is
        poll("some clients are refused", lambda: "no room for another connection" in server.errors())

        def comes_in():
            try:
                peer = self.keep(Peer(port)).greeted().send(wire.join("a"))
                return peer.read_until(wire.ASSIGNMENT)[0] == wire.ASSIGNMENT
            except (OSError, struct.error):  # closed
                return False
        poll("an agent comes in", comes_in)

    def test_roster_has_the_ranks(self):
        self.members(2)
        table = self.ctl(self.endpoint, "roster", "job").stdout.splitlines()
        self.assertRegex(table[1], r"^0 +0\.\.0 +host-n\d +127\.0\.0\.1 +1 +running +n\d$")
        self.assertRegex(table[2], r"^1 +1\.\.1 ")

    def test_flight_records_of_peers_that_lie(self):
        honest, wrong_id, twice, too_large, half = self.members(5)
        result = self.ask_flight()
        ids = [self.flight_id(peer) for peer in (honest, wrong_id, twice, too_large, half)]
        self.assertEqual(len(set(ids)), 1)
        reply = struct.pack("<Q", ids[0]) + wire.text(b"not what unpack_flight wants")
        for _ in range(2):
            twice.send(wire.frame(wire.FLIGHT_REPLY, reply))
        wrong_id.send(wire.frame(wire.FLIGHT_REPLY, struct.pack("<Q", ids[0] + 77) + wire.text(b"x")))
        half.send(wire.frame(wire.FLIGHT_REPLY, reply)[:20])
        half.socket.close()
        too_large.send(struct.pack("<IB", (4 << 20) + 4097, wire.FLIGHT_REPLY))
        self.assertEqual(too_large.read_until()[0], None)  # the connection is closed before anything is allocated
        honest.send(wire.frame(wire.FLIGHT_REPLY, struct.pack("<Q", ids[0]) + wire.text(b"")))
        answer = result()
        self.assertEqual(answer.returncode, 1)
        self.assertEqual(answer.stdout.count("(host-n"), 2, answer.stdout)  # the honest one, and one of twice
        for silent in ("host-n1", "host-n3", "host-n4"):
            self.assertIn(silent, answer.stderr)

    def test_flight_record_is_asked_for_anew_after_the_operator_went_away(self):
        (member,) = self.members(1)
        asker = Peer(self.port, wire.OPERATOR).greeted().send(wire.frame(wire.FLIGHT_QUERY, wire.text("job")))
        first = self.flight_id(member)
        asker.socket.close()
        member.send(wire.frame(wire.FLIGHT_REPLY, struct.pack("<Q", first) + wire.text(b"x" * 100_000)))
        result = self.ask_flight()
        second = self.flight_id(member)
        self.assertNotEqual(first, second)
        member.send(wire.frame(wire.FLIGHT_REPLY, struct.pack("<Q", first) + wire.text(b"late")))
        member.send(wire.frame(wire.FLIGHT_REPLY, struct.pack("<Q", second) + wire.text(b"")))
        self.assertEqual(result().returncode, 0)

    def test_no_answer_comes_between_flight_records(self):
        first, second = self.members(2)
        asker = self.keep(Peer(self.port, wire.OPERATOR).greeted())
        query = wire.frame(wire.FLIGHT_QUERY, wire.text("job"))
        asker.send(query + wire.frame(wire.STATUS_REQUEST, wire.text("job")) + query)

        def give(peer):
            peer.send(wire.frame(wire.FLIGHT_REPLY, struct.pack("<Q", self.flight_id(peer)) + wire.text(b"r")))
        give(first)
        self.idle()
        for peer in (second, first, second):
            give(peer)
        answers = [asker.read() for _ in range(7)]
        flight = [wire.FLIGHT_PART, wire.FLIGHT_PART, wire.REPLY]
        self.assertEqual([kind for kind, _ in answers], [*flight, wire.REPLY, *flight])
        self.assertTrue(answers[3][1].endswith(b"}"), answers[3][1][-10:])

    def test_requests_whose_answers_nobody_reads_cost_no_memory(self):
        count = 8_000
        self.members(30)
        before = wire.resident_bytes(self.server.pid)
        asker = self.keep(Peer(self.port, wire.OPERATOR).greeted())
        asker.send(wire.frame(wire.STATUS_REQUEST, wire.text("job")) * count)
        self.idle()
        grown = wire.resident_bytes(self.server.pid) - before
        self.assertLess(grown, 24 << 20, "the daemon makes answers that the operator does not read")
        for _ in range(count):  # each whole, none in the middle of another
            kind, payload = asker.read()
            self.assertEqual(kind, wire.REPLY)
            self.assertTrue(payload.endswith(b"}"), payload[-10:])
            self.assertGreater(len(payload), 6_000)

    def test_watch_ends_when_nobody_reads_it(self):
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        watch = subprocess.run([BIN / "ddpctl", "--rdzv-endpoint", self.endpoint, "status", "--watch"], stdout=writer,
                               stderr=subprocess.PIPE, text=True, timeout=LIMIT, env=self.environment(), check=False)
        self.assertEqual(watch.returncode, 1)
        self.assertIn("ddpctl: cannot write all of the output: ", watch.stderr)

    def test_flight_records_wait_for_a_slow_operator(self):
        count, size = 48, 4 << 20  # more than the daemon may hold
        members = self.members(count)
        before = wire.resident_bytes(self.server.pid)

        def serve(peer):
            number = self.flight_id(peer)
            peer.send(wire.frame(wire.FLIGHT_REPLY, struct.pack("<Q", number) + wire.text(b"r" * size)))
        threads = [threading.Thread(target=serve, args=(peer,)) for peer in members]
        for thread in threads:
            thread.start()
        asker = self.keep(Peer(self.port, wire.OPERATOR).greeted())
        asker.send(wire.frame(wire.FLIGHT_QUERY, wire.text("job")))
        self.idle()  # it does not read: that is the case
        self.assertTrue(select.select([asker.socket], [], [], LIMIT)[0], "no record has come")
        grown = wire.resident_bytes(self.server.pid) - before
        self.assertLess(grown, 128 << 20, "the daemon holds what the operator does not read")
        got = 0
        while True:
            kind, payload = asker.read()
            if kind != wire.FLIGHT_PART:
                break
            self.assertGreater(len(payload), size)
            got += 1
        for thread in threads:
            thread.join(LIMIT)
        self.assertEqual((kind, payload[0], got), (wire.REPLY, 1, count))


if __name__ == "__main__":
    main()
