"""Strangers who reach the port, and peers that lie or park: they change nothing, and use up nothing."""
import http.client
import os
import pathlib
import resource
import select
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import rdzv_wire as wire  # noqa: E402
from rdzv_support import LIMIT, RendezvousTest, free_port, main, poll  # noqa: E402
from rdzv_wire import Peer, agent  # noqa: E402

REFUSED, FINISHED, REGISTERED = 69, 67, 73
TEN_YEARS_MS = 315_360_000_000


class Strangers(RendezvousTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"

    def serve(self, *extra, prefix=()):
        options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"  # here memory is measured
        name = f"daemon{len(self.processes)}"
        self.server = self.daemon(self.port, name, prefix=prefix, extra=extra, ASAN_OPTIONS=options)
        return self.server

    def keep(self, peer):
        self.addCleanup(peer.socket.close)
        return peer

    def members(self, count, run_id="job"):
        peers = [self.keep(agent(self.port, f"n{i}", key=f"key of n{i}", nnodes=(count, count), run_id=run_id))
                 for i in range(count)]
        for peer in peers:
            self.assertEqual(peer.read_until(wire.ASSIGNMENT)[0], wire.ASSIGNMENT)
        return peers

    def beats(self, peer, number=7):
        peer.send(wire.frame(wire.HEARTBEAT, struct.pack("<QB", number, 0)))
        return peer.read_until(wire.HEARTBEAT_ACK)[0] == wire.HEARTBEAT_ACK

    def resident(self):
        return wire.resident_bytes(self.server.pid)

    # --- whose a node is

    def test_a_node_belongs_to_the_agent_that_began_it(self):
        self.serve()
        members = self.members(2)
        for i, member in enumerate(members):
            where = dict(group_rank=i, first_rank=i, nodes=2, world=2, nnodes=(2, 2), connection=2**64 - 1)
            for key in ("", "key of another", f"key of n{i}x", f"key of n{1 - i}"):
                stranger = self.keep(Peer(self.port).greeted().send(wire.register(f"n{i}", key=key, **where)))
                stranger.send(wire.frame(wire.DONE, struct.pack("<qB", 1, 0)))
                self.assertEqual(stranger.read()[0], REFUSED)
                self.assertEqual(stranger.read()[0], None)
                joining = self.keep(Peer(self.port).greeted())
                joining.send(wire.join(f"n{i}", key=key, connection=2**64 - 1, last_round=1, nnodes=(2, 2)))
                self.assertEqual(joining.read()[0], REFUSED)
            self.assertTrue(self.beats(member), "the node lost its connection to a stranger")
        # Nor does anything tell the key to others.
        said = self.ctl(self.endpoint, "status", "--json").stdout + self.ctl(self.endpoint, "roster", "job").stdout
        self.assertIn("host-n0", said)
        self.assertNotIn("key of", said + self.server.errors())
        self.assertIn("speaks for node n0 of job job, which another one began", self.server.errors())
        # The agent itself may come back on a new connection.
        again = self.keep(Peer(self.port).greeted().send(wire.register(
            "n0", key="key of n0", group_rank=0, first_rank=0, nodes=2, world=2, nnodes=(2, 2), connection=2)))
        self.assertEqual(again.read()[0], REGISTERED)
        self.assertEqual(members[0].read_until()[0], None)

    def test_who_has_not_joined_is_not_answered(self):
        self.serve()
        for frame in (wire.frame(wire.HEARTBEAT, struct.pack("<QB", 1, 0)), wire.frame(wire.DONE, struct.pack("<qB", 1, 0)),
                      wire.frame(wire.LEAVE, struct.pack("<q", 1) + wire.text("bye"))):
            peer = self.keep(Peer(self.port).greeted().send(frame))
            self.assertEqual(peer.read()[0], None)

    # --- numbers

    def test_a_lease_has_a_bound(self):
        self.serve("--state-file", self.dir / "state")
        stranger = self.keep(Peer(self.port).greeted())
        stranger.send(wire.register("x", round_number=0, keep_alive_ms=TEN_YEARS_MS, attempts=1))
        self.assertEqual(stranger.read()[0], None)
        poll("it is said", lambda: "at most 600 s are allowed" in self.server.errors())
        self.members(2)

    def test_a_state_file_with_a_lease_of_ten_years_blocks_nothing_for_so_long(self):
        state = self.dir / "state"
        self.serve("--state-file", state)
        self.members(2)
        self.server.signal(9)
        self.server.wait()
        lines = state.read_text().splitlines()
        words = lines[1].split()
        state.write_text("\n".join([lines[0], " ".join([str(2 * TEN_YEARS_MS), *words[1:]]), *lines[2:], ""]))
        self.serve("--state-file", state)
        waiting = self.keep(agent(self.port, "fresh", nnodes=(1, 1)))
        waiting.send(wire.frame(wire.HEARTBEAT, struct.pack("<QB", 1, 1)))
        kind, payload = waiting.read_until(wire.HEARTBEAT_ACK)
        self.assertEqual(kind, wire.HEARTBEAT_ACK)
        self.assertRegex(wire.read_text(payload, 8)[0].decode(), r"; 60\d s left")

    def test_round_numbers_are_not_used_up(self):
        self.serve()
        for number in (2**53, 2**53 - 1, 2**52):
            with agent(self.port, "liar", nnodes=(1, 1), last_round=number) as liar:
                kind, payload = liar.read_until(wire.ASSIGNMENT)
                self.assertEqual(kind, wire.ASSIGNMENT)
                self.assertLess(struct.unpack_from("<q", payload)[0], 10_000_000)

    def test_run_ids_have_a_bound(self):
        count = 4_096
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < count + 500:
            self.skipTest(f"needs {count + 500} descriptors, {hard} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.serve()
        peers = [self.keep(agent(self.port, "n", run_id=f"job{i}", nnodes=(2, 2))) for i in range(count)]
        self.assertTrue(self.beats(peers[-1]))
        one_more = self.keep(agent(self.port, "n", run_id="one more", nnodes=(2, 2)))
        kind, payload = one_more.read()
        self.assertEqual((kind, payload[0]), (REFUSED, 1), payload)
        self.assertTrue(self.beats(peers[0]))
        peers[5].socket.close()  # its place is free soon

        def comes_in():
            peer = self.keep(agent(self.port, "n", run_id="one more", nnodes=(2, 2)))
            return self.beats(peer)
        poll("there is room again", comes_in)

    # --- memory

    def test_announced_bytes_cost_nothing(self):
        self.serve()
        member = self.keep(agent(self.port, "m", nnodes=(2, 2)))
        self.assertTrue(self.beats(member))
        before = self.resident()
        strangers = [self.keep(Peer(self.port).greeted().send(struct.pack("<I", 4 << 20))) for _ in range(60)]
        joined = []
        for i in range(60):
            peer = self.keep(agent(self.port, f"j{i}", run_id=f"other{i}", nnodes=(2, 2)))
            self.assertTrue(self.beats(peer))
            joined.append(peer.send(struct.pack("<I", 256 << 10)))
        self.assertTrue(self.beats(member))
        self.assertLess(self.resident() - before, 8 << 20)
        for peer in strangers:  # too long for who is not known
            self.assertEqual(peer.read_until()[0], None)

    def test_the_last_word_of_a_job_is_kept_once(self):
        self.serve()
        spares = 150
        line = "x" * 1024
        record = b"".join([struct.pack("<qqqqq", 0, 0, 0, 1, 0), wire.text("h"), struct.pack("<qqqq", 1, 1, 0, 0),
                           b"\0\0", struct.pack("<I", 20) + wire.text(line) * 20, wire.text("e" * 32768),
                           struct.pack("<I", 20) + wire.text(line) * 20, wire.text("m" * 4096)])
        members = self.members(2)
        waiting = [self.keep(agent(self.port, f"s{i}", key="s", nnodes=(2, 2))) for i in range(spares)]
        for peer in waiting:
            self.assertEqual(peer.read_until(wire.NOTICE)[0], wire.NOTICE)
        for rank in range(16):
            members[0].send(wire.frame(wire.FAILURE, struct.pack("<qBB", 0, 0, 0) + struct.pack("<q", rank) + record[8:]))
        for peer in waiting:
            self.assertEqual(peer.read_until(wire.SHUTDOWN)[0], wire.SHUTDOWN)
        self.idle()
        before = self.resident()
        for peer in waiting:
            peer.socket.close()
        poll("all spares have gone", lambda: "s149" not in self.ctl(self.endpoint, "roster", "job").stdout)
        self.idle()
        self.assertLess(self.resident() - before, 16 << 20)

    def idle(self):
        def used():
            with open(f"/proc/{self.server.pid}/stat") as f:
                return f.read().rpartition(")")[2].split()[11:13]

        def quiet():
            first = used()
            time.sleep(0.3)
            return used() == first
        poll("the daemon has nothing to do", quiet)

    # --- operators

    def status_of(self, peer):
        peer.send(wire.frame(wire.STATUS_REQUEST, wire.text("")))
        while True:
            kind, _ = peer.read()
            if kind != wire.REPLY_PART:
                return kind == wire.REPLY

    def test_silent_operators_and_descriptors(self):
        metrics = free_port()
        self.serve("--metrics-port", metrics, prefix=("sh", "-c", 'ulimit -n 200; exec "$0" "$@"'))
        member = self.members(1)[0]
        for _ in range(250):  # each asks once and stays
            peer = self.keep(Peer(self.port, wire.OPERATOR).greeted())
            self.assertTrue(self.status_of(peer))
        self.assertTrue(self.beats(member))
        connection = http.client.HTTPConnection("127.0.0.1", metrics, timeout=LIMIT)
        connection.request("GET", "/healthz")
        self.assertEqual(connection.getresponse().status, 200)
        self.assertEqual(self.ctl(self.endpoint, "status").returncode, 0)
        newcomer = self.keep(agent(self.port, "new", run_id="another", nnodes=(1, 1)))
        self.assertEqual(newcomer.read_until(wire.ASSIGNMENT)[0], wire.ASSIGNMENT)

    def test_operators_that_read_nothing_share_what_they_do_not_read(self):
        self.serve()
        count = 300
        for i in range(count):
            self.keep(agent(self.port, f"n{i}", host="h" * 250, nnodes=(count + 1, count + 1), run_id="j" * 250))
        self.idle()
        before = self.resident()
        for _ in range(60):
            peer = self.keep(Peer(self.port, wire.OPERATOR).greeted())
            peer.send(wire.frame(wire.STATUS_REQUEST, wire.text("")) * 8)
        self.idle()
        self.assertLess(self.resident() - before, 32 << 20)
        self.assertEqual(self.ctl(self.endpoint, "status").returncode, 0)

    # --- health

    def test_healthz_answers_although_others_hold_all_connections(self):
        metrics = free_port()
        self.serve("--metrics-port", metrics)
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        stop = threading.Event()
        held = []

        def hold():
            while not stop.is_set():
                for sock in list(held):
                    try:
                        sock.sendall(request)
                    except OSError:
                        held.remove(sock)
                while len(held) < 64 and not stop.is_set():
                    held.append(socket.create_connection(("127.0.0.1", metrics), LIMIT))
                    held[-1].sendall(request)
                select.select([], [], [], 0.05)
        thread = threading.Thread(target=hold)
        thread.start()
        try:
            poll("all are held", lambda: len(held) == 64)
            for _ in range(10):
                connection = http.client.HTTPConnection("127.0.0.1", metrics, timeout=LIMIT)
                connection.request("GET", "/healthz")
                self.assertEqual(connection.getresponse().status, 200)
        finally:
            stop.set()
            thread.join()
            for sock in held:
                sock.close()

    # --- many at once

    def test_silent_connections_do_not_keep_agents_out(self):
        self.serve()
        silent = [self.keep(Peer(self.port, opening=b"")) for _ in range(200)]
        half = [self.keep(Peer(self.port, opening=b"DDPR")) for _ in range(100)]
        self.members(3)
        for peer in (*silent, *half):
            self.assertEqual(peer.exactly(1), b"")
        self.assertEqual(self.ctl(self.endpoint, "status").returncode, 0)


if __name__ == "__main__":
    main()
