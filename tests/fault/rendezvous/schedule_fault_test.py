"""Random faults on four hosts, each schedule from one seed: cuts, one-way loss, delay, loss, power cuts, kills, stops.

DDPRUN_FAULT_SCHEDULES=200 runs so many (default 10), DDPRUN_FAULT_SEED is the first seed, DDPRUN_FAULT_PARALLEL how many
run at a time (default 5). Root and /dev/net/tun only.
"""
import os
import pathlib
import random
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from rdzv_hosts import SLACK, T_LOST, OnLinkedHosts  # noqa: E402
from rdzv_support import in_threads, main  # noqa: E402

_lock = threading.Lock()
FAULTS = ["cut", "one way", "not heard", "kill agent", "term agent", "kill daemon", "crash", "fail", "heal", "pause",
          "slow", "spike", "stop agent"]


def slow(choose):
    """A path at its worst: 5 to 200 ms and up to 5 % loss."""
    return {"delay_ms": choose.uniform(5, 100), "jitter_ms": choose.uniform(0, 100),
            "loss_percent": choose.choice([0, 1, 3, 5])}


def schedule(test, seed):
    """Random faults for a while; then the cuts and the spikes go, what is slow stays slow, and the job must end."""
    choose = random.Random(seed)
    if choose.random() < 0.6:
        test.hosts.impair(**slow(choose))
    state = ("--state-file", test.dir / "state")
    test.serve(extra=state)
    hosts = [1, 2, 3]
    flags = [f"--max-restarts={choose.choice([0, 3, 20])}"]
    agents = {i: test.agent(i, *flags, nnodes="1:3") for i in hosts}
    daemon = test.processes[0]
    started = list(agents.values())
    story, cut, spikes, stopped, count = [], set(), set(), [], 0
    for _ in range(choose.randrange(4, 9)):
        fault = choose.choice(FAULTS)
        i = choose.choice(hosts)
        count += 1
        story.append(f"{fault} {i}")
        if fault == "cut" and i not in cut:
            cut.add(i)
            test.hosts.cut(i)
        elif fault == "one way" and i not in cut:
            cut.add(i)
            test.hosts.cut(i, source=4)
        elif fault == "not heard" and i not in cut:
            cut.add(i)
            test.hosts.cut(4, source=i)
        elif fault == "slow":
            test.hosts.impair(*choose.choice([(i, 4), (4, i), (i, None), (None, i)]), **slow(choose))
        elif fault == "spike":
            spikes.add(i)
            for pair in ((i, 4), (4, i)):
                test.hosts.impair(*pair, delay_ms=choose.uniform(500, 4000))
        elif fault == "stop agent":
            agents[i].signal(signal.SIGSTOP)
            stopped.append(agents[i])
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
                agents[i].signal(signal.SIGCONT)
                agents[i].wait()
            agents[i] = test.agent(i, *flags, nnodes="1:3", name=f"h{i}.{count}")
            started.append(agents[i])
        elif fault == "kill daemon":
            daemon.signal(signal.SIGKILL)
            daemon.wait()
            daemon = test.serve(name=f"daemon{count}", extra=state)
        elif fault == "fail":
            living = test.alive()
            if living:
                worker = choose.choice(living)
                test.order(f"rank{worker['rank']}.round{worker['round']}", "7")
        time.sleep(choose.random() * 2.5)  # part of the schedule
    for i in sorted(cut):
        test.hosts.heal(i)
    for i in sorted(spikes):
        test.hosts.impair(i, 4, **slow(choose))
        test.hosts.impair(4, i, **slow(choose))
    for agent in stopped:
        agent.signal(signal.SIGCONT)
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


class RandomSchedules(OnLinkedHosts):
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
        in_threads(work, width)
        self.assertEqual(problems, [], "\n".join(problems))
        print(f"{count} schedules from seed {first}", file=sys.stderr)


class OneSchedule(OnLinkedHosts):
    def run_one(self):
        schedule(self, self.seed)


if __name__ == "__main__":
    main()
