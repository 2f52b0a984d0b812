"""Four hosts in network namespaces: partitions, one-way loss, power cuts, killed agents and daemons.

Every run ends with one consistent world or a reasoned error on every node, within bounds, and nothing is left. Root only.
"""
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from rdzv_hosts import CONF, LEASE, PORT, SLACK, T_LOST, OnHosts  # noqa: E402
from rdzv_support import main, poll  # noqa: E402


class NetworkFaults(OnHosts):
    def test_partition_stops_the_cut_off_side_first_and_heals(self):
        self.serve()
        nodes = [self.agent(i) for i in (1, 2, 3)]
        first = self.wait_for_world(3)
        begin = time.monotonic()
        self.hosts.cut(3)
        second = self.wait_for_world(2, newer_than=first[0]["round"], limit=60)
        took = time.monotonic() - begin
        self.assertGreater(took, LEASE)
        self.assertLess(took, T_LOST + SLACK + 10)
        self.assert_one_world_at_a_time()
        self.hosts.heal(3)
        self.wait_for_world(3, newer_than=second[0]["round"])
        self.end_well(*nodes)
        self.assert_one_world_at_a_time()
        self.assertEqual({w["restart"] for w in self.workers()}, {0}, "a change of members was counted")

    def test_short_partition_disturbs_nobody(self):
        self.serve()
        nodes = [self.agent(i, conf=CONF.replace("max_attempt=2", "max_attempt=20")) for i in (1, 2)]
        world = self.wait_for_world(2)
        self.hosts.cut(1)
        time.sleep(1)  # the fault itself: how long the cable is out
        self.hosts.heal(1)
        poll("heartbeats are answered again", lambda: self.ctl(f"{self.hosts.ip(4)}:{PORT}", "status",
                                                               prefix=self.hosts.on(4)).stdout.count(" running ") >= 2)
        self.assertEqual({w["pid"] for w in self.alive()}, {w["pid"] for w in world})
        self.end_well(*nodes)

    def test_one_way_loss_towards_the_node(self):
        self.serve()
        # Its worker takes its time: what the node's kernel sends meanwhile must not look like the node's end.
        nodes = [self.agent(1), self.agent(2), self.agent(3, TEST_TERM_DELAY="20")]
        first = self.wait_for_world(3)
        self.hosts.cut(3, source=4)  # host 3 is heard, but hears nothing
        second = self.wait_for_world(2, newer_than=first[0]["round"])
        self.assert_one_world_at_a_time()
        self.hosts.heal(3)
        self.wait_for_world(3, newer_than=second[0]["round"])
        self.end_well(*nodes)
        self.assert_one_world_at_a_time()

    def test_cut_off_while_its_workers_are_being_stopped(self):
        self.serve()
        flags = ("--max-restarts=1", "--shutdown-timeout=30")
        nodes = [self.agent(1, *flags), self.agent(2, *flags), self.agent(3, *flags, TEST_TERM_DELAY="60")]
        first = self.wait_for_world(3)
        other = next(w for w in first if w["host"] == "h1")
        self.order(f"rank{other['rank']}.round{other['round']}", "9")
        poll("host 3 stops its worker", lambda: "round 1 ends" in nodes[2].errors())
        self.hosts.cut(3)
        second = self.wait_for_world(2, newer_than=first[0]["round"])
        self.assert_one_world_at_a_time()
        self.hosts.heal(3)
        self.wait_for_world(3, newer_than=second[0]["round"])
        self.end_well(*nodes)
        self.assert_one_world_at_a_time()

    def test_power_cut_and_a_host_of_the_same_name_comes_back(self):
        self.serve()
        nodes = [self.agent(i) for i in (1, 2)]
        lost = self.agent(3)
        first = self.wait_for_world(3)
        self.hosts.crash(3)
        lost.wait()
        second = self.wait_for_world(2, newer_than=first[0]["round"])
        self.hosts.boot(3)
        back = self.agent(3, name="h3again")
        self.wait_for_world(3, newer_than=second[0]["round"])
        self.end_well(*nodes, back)
        self.assert_one_world_at_a_time()

    def test_below_min_the_rest_waits_then_says_why(self):
        self.serve()
        conf = CONF.replace("join_timeout=25", "join_timeout=5")
        kept, lost = self.agent(1, nnodes="2", conf=conf), self.agent(2, nnodes="2", conf=conf)
        self.wait_for_world(2)
        lost.signal(signal.SIGKILL)
        self.assertEqual(kept.wait(), 69)
        self.assertIn("1 of at least 2 nodes are left", kept.errors())
        self.assertIn("connection closed", kept.errors())
        self.assertEqual(self.alive(), [])

    def test_daemon_host_cut_off_all_stop_and_meet_again(self):
        self.serve()
        nodes = [self.agent(i) for i in (1, 2)]
        first = self.wait_for_world(2)
        self.hosts.cut(4)
        poll("silence stopped the workers", lambda: not self.alive(), 30)
        self.hosts.heal(4)
        self.wait_for_world(2, newer_than=first[0]["round"])
        self.end_well(*nodes)
        self.assert_one_world_at_a_time()

    def test_on_silence_keep(self):
        self.serve()
        nodes = [self.agent(i, conf=CONF + ",on_silence=keep") for i in (1, 2)]
        world = self.wait_for_world(2)
        self.hosts.cut(4)
        for node in nodes:
            poll("the silence is told", lambda n=node: "on_silence=keep" in n.errors())
        self.assertEqual({w["pid"] for w in self.alive()}, {w["pid"] for w in world})
        self.order("stop")
        for node in nodes:
            self.assertEqual(node.wait(), 0, node.errors())

    def test_operators_of_other_hosts_need_the_token(self):
        token = self.dir / "token"
        token.write_text("secret\n")
        token.chmod(0o600)
        self.daemon(PORT, prefix=self.hosts.on(4), extra=("--token-file", token))
        node = self.agent(1, nnodes="1")
        self.wait_for_world(1)
        endpoint = f"{self.hosts.ip(4)}:{PORT}"
        denied = self.ctl(endpoint, "stop", "job", prefix=self.hosts.on(2))
        self.assertEqual(denied.returncode, 1)
        self.assertIn("token", denied.stderr)
        self.assertEqual(self.ctl(endpoint, "stop", "job", "--token-file", str(token), prefix=self.hosts.on(2)).returncode, 0)
        self.assertEqual(node.wait(), 143)

    def test_who_can_bind_the_endpoint_hosts_it(self):
        conf = CONF.replace("is_host=0,", "")
        nodes = [self.node(f"h{i}", f"{self.hosts.ip(2)}:{PORT}", nnodes="3", conf=conf, prefix=self.hosts.on(i))
                 for i in (1, 2, 3)]
        world = self.wait_for_world(3)
        self.assertIn("hosting the rendezvous", nodes[1].errors())
        self.assertNotIn("hosting", nodes[0].errors() + nodes[2].errors())
        self.assertTrue(world[0]["master"].startswith(self.hosts.net))
        self.end_well(*nodes)


if __name__ == "__main__":
    main()
