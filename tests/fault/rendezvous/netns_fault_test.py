"""Four hosts in network namespaces: partitions, one-way loss, power cuts, killed agents and daemons.

Every run ends with one consistent world or a reasoned error on every node, within bounds, and nothing is left. Root only.
DDPRUN_FAULT_SCHEDULES=200 runs so many random schedules (default 10), DDPRUN_FAULT_SEED is the first seed.
"""
import os
import pathlib
import random
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from rdzv_support import Hosts, RendezvousTest, main, poll  # noqa: E402

# lease 2 s, T_lost 7 s
CONF = "is_host=0,join_timeout=25,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,close_timeout=5"
LEASE, T_LOST, SLACK = 2, 7, 8
PORT = 29400
_numbers = iter(range(1, 250))
_lock = threading.Lock()


class OnHosts(RendezvousTest):
    def setUp(self):
        with _lock:
            why_not = Hosts.possible()
        if why_not:
            self.skipTest(why_not)
        super().setUp()
        with _lock:
            number = next(_numbers)
        self.hosts = Hosts(4, number)
        self.addCleanup(self.hosts.close)
        self.hosts.up()

    def serve(self, host=4, name="daemon"):
        return self.daemon(PORT, name, prefix=self.hosts.on(host))

    def agent(self, host, *flags, name=None, nnodes="2:3", conf=CONF, **env):
        return self.node(name or f"h{host}", f"{self.hosts.ip(4)}:{PORT}", "--shutdown-timeout=5", *flags, nnodes=nnodes,
                         conf=conf, prefix=self.hosts.on(host), **env)


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
        nodes = [self.agent(i) for i in (1, 2, 3)]
        first = self.wait_for_world(3)
        self.hosts.cut(3, source=4)  # host 3 is heard, but hears nothing
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


def schedule(test, seed):
    """Random faults for a while; then all is healed, and the job must end."""
    choose = random.Random(seed)
    test.serve()
    hosts = [1, 2, 3]
    flags = [f"--max-restarts={choose.choice([0, 3, 20])}"]
    agents = {i: test.agent(i, *flags, nnodes="1:3") for i in hosts}
    daemon = test.processes[0]
    started = list(agents.values())
    story, cut, count = [], set(), 0
    for _ in range(choose.randrange(4, 9)):
        fault = choose.choice(["cut", "one way", "kill agent", "term agent", "kill daemon", "crash", "fail", "heal", "pause"])
        i = choose.choice(hosts)
        count += 1
        story.append(f"{fault} {i}")
        if fault == "cut" and i not in cut:
            cut.add(i)
            test.hosts.cut(i)
        elif fault == "one way" and i not in cut:
            cut.add(i)
            test.hosts.cut(i, source=4)
        elif fault == "heal" and cut:
            healed = choose.choice(sorted(cut))
            cut.discard(healed)
            test.hosts.heal(healed)
        elif fault in ("kill agent", "term agent", "crash") and i not in cut:
            if fault == "crash":
                test.hosts.crash(i)
                agents[i].wait()
                test.hosts.boot(i)
            else:
                agents[i].signal(signal.SIGKILL if fault == "kill agent" else signal.SIGTERM)
                agents[i].wait()
            agents[i] = test.agent(i, *flags, nnodes="1:3", name=f"h{i}.{count}")
            started.append(agents[i])
        elif fault == "kill daemon":
            daemon.signal(signal.SIGKILL)
            daemon.wait()
            daemon = test.serve(name=f"daemon{count}")
        elif fault == "fail":
            living = test.alive()
            if living:
                worker = choose.choice(living)
                test.order(f"rank{worker['rank']}.round{worker['round']}", "7")
        time.sleep(choose.random() * 2.5)  # part of the schedule
    for i in sorted(cut):
        test.hosts.heal(i)
    test.order("stop")
    what = f"seed {seed}: {', '.join(story)}"
    bound = 25 + T_LOST + SLACK + 60
    for agent in started:
        try:
            code = agent.wait(bound)
        except AssertionError as error:
            raise AssertionError(f"{what}\n{error}") from None
        test.assertIn(code, (0, 7, 69, 143, -signal.SIGKILL, -signal.SIGTERM), f"{what}\n{agent.errors()}")
        if code in (7, 69):
            test.assertIn("ddprun", agent.errors(), what)
            test.assertRegex(agent.errors(), r"rank \d+ on |timed out", what)
    try:
        test.assert_one_world_at_a_time(slack=0.05)
    except AssertionError as error:
        logs = "\n".join(f"--- {p.name}\n{p.errors()[-4000:]}" for p in test.processes)
        raise AssertionError(f"{what}\n{error}\n{logs}") from None
    test.assert_nothing_left(daemon)


class RandomSchedules(OnHosts):
    def test_seeded_schedules(self):
        count = int(os.environ.get("DDPRUN_FAULT_SCHEDULES", "10"))
        first = int(os.environ.get("DDPRUN_FAULT_SEED", "1"))
        width = int(os.environ.get("DDPRUN_FAULT_PARALLEL", "5"))
        seeds, problems = iter(range(first, first + count)), []

        def work():
            while True:
                with _lock:
                    seed = next(seeds, None)
                if seed is None:
                    return
                case = OneSchedule("run_one")
                case.seed = seed
                outcome = case.run()
                problems.extend(text for _, text in outcome.failures + outcome.errors + outcome.skipped)
        threads = [threading.Thread(target=work) for _ in range(width)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [], "\n".join(problems))
        print(f"{count} schedules from seed {first}", file=sys.stderr)


class OneSchedule(OnHosts):
    seed = 1

    def run_one(self):
        schedule(self, self.seed)


if __name__ == "__main__":
    main()
