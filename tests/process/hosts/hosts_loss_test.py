"""Nothing is left on any host after any end, and a lost host is named: killed launchers, cut networks, power cuts."""
import contextlib
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from host_shells import HostShells, SshHosts  # noqa: E402
from rdzv_support import main, poll  # noqa: E402

FAST = ("--host-silence=3", "--shutdown-timeout=3",
        "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,close_timeout=5")


class HostLosses(HostShells):
    def test_sigkill_of_the_first_launcher(self):
        job = self.starter("-H", self.list_of(4, 1, 2), *self.worker_words())  # its own host is in the list
        self.wait_for_world(3)
        job.signal(signal.SIGKILL)
        job.wait()
        self.assert_hosts_empty(1, 2, 4)
        # They were asked, not killed: each worker has ended by SIGTERM.
        self.assertEqual([w.get("code") for w in self.workers()], [143] * 3)

    def test_the_first_launcher_does_not_run(self):
        job = self.starter("-H", self.list_of(1, 2), *FAST, *self.worker_words())
        self.wait_for_world(2)
        job.signal(signal.SIGSTOP)
        self.assert_hosts_empty(1, 2)
        job.signal(signal.SIGCONT)
        self.assertNotEqual(job.wait(), 0)

    def test_a_short_stop_of_the_first_launcher_is_no_matter(self):
        job = self.starter("-H", self.list_of(1, 2), "--host-silence=10", *self.worker_words())
        self.wait_for_world(2)
        job.signal(signal.SIGSTOP)
        beats = {w["pid"]: w["last"] for w in self.workers()}
        poll("the workers run on for a second", lambda: all(w["last"] > beats[w["pid"]] + 1 for w in self.workers()))
        job.signal(signal.SIGCONT)
        self.order("stop")
        self.assertEqual(job.wait(), 0, job.errors())

    def test_a_killed_shell_is_a_lost_host(self):
        job = self.starter("-H", self.list_of(1, 2), *self.worker_words())
        self.wait_for_world(2)
        agents = [pid for pid, words in self.words_on(2).items() if "__node-of-a-host-list" in words]
        self.assertTrue(agents)
        for pid in agents:
            with contextlib.suppress(ProcessLookupError):  # a shell may end with its child
                os.kill(pid, signal.SIGKILL)
        self.assertEqual(job.wait(), 69, job.errors())
        self.assertRegex(self.last_line(job), f"lost {self.hosts.ip(2)}: .*(SIGKILL|137)")
        self.assert_hosts_empty(1, 2)

    def test_workers_that_do_not_listen_end_too(self):
        (self.dir / "deaf.py").write_text("import signal, time, sys, os\n"
                                          "for n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\n"
                                          "open(sys.argv[1] + '/deaf.' + os.environ['RANK'], 'w').close()\n"
                                          "while True: time.sleep(1)\n")
        job = self.starter("-H", self.list_of(1, 2), "--shutdown-timeout=2", "--no-python", "python3", self.dir / "deaf.py",
                           self.dir)
        poll("both run", lambda: len(list(self.dir.glob("deaf.[01]"))) == 2 or job.process.poll() is not None, 20)
        self.assertIsNone(job.process.poll(), job.errors())
        job.signal(signal.SIGKILL)
        job.wait()
        self.assert_hosts_empty(1, 2)


class SshLosses(SshHosts):
    """What crosses a network: a cut is silence, no process sees an end."""

    def test_the_starting_host_is_cut_off(self):
        job = self.starter("-H", self.list_of(1, 2), *FAST, *self.worker_words())
        self.wait_for_world(2)
        self.hosts.cut(4)
        poll("no worker is left", lambda: not self.alive(), 40)
        self.assertEqual(job.wait(), 69, job.errors())
        self.assertRegex(self.last_line(job), f"lost {self.hosts.ip(1)}: silent for 3 s.*; {self.hosts.ip(2)}: silent")
        # sshd itself waits for TCP's own patience; nothing of ours does.
        poll("no launcher is left",
             lambda: not any("ddprun" in words for i in (1, 2, 4) for words in self.words_on(i).values()), 40)

    def power_cut(self, lost, nnodes, code):
        job = self.starter("-H", self.list_of(1, 2, 3), f"--nnodes={nnodes}", *FAST, *self.worker_words())
        self.wait_for_world(3)
        self.hosts.crash(lost)
        if code == 0:
            self.wait_for_world(2, newer_than=1)
            self.order("stop")
        self.assertEqual(job.wait(), code, job.errors())
        self.assertIn(f"{self.hosts.ip(lost)}: silent for 3 s", self.last_line(job))
        self.assert_hosts_empty(*{1, 2, 3} - {lost})

    def test_a_power_cut_of_a_host_that_is_not_needed(self):
        self.power_cut(lost=3, nnodes="2:3", code=0)

    def test_a_power_cut_of_a_host_that_is_needed(self):
        self.power_cut(lost=3, nnodes="3", code=69)

    def test_a_power_cut_of_the_host_that_serves(self):
        self.power_cut(lost=1, nnodes="1:3", code=69)

if __name__ == "__main__":
    main()
