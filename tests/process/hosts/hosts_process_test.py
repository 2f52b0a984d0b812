"""A job over a list of hosts: one world, words, arguments, variables, signals, refusals."""
import os
import pathlib
import re
import select
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from host_shells import HostShells, SshHosts  # noqa: E402
from rdzv_support import BIN, main, poll  # noqa: E402

TELL = """#!/bin/sh
[ "$1" = "$RANK" ] && exit "$2"
echo "rank $RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE, at $MASTER_ADDR, in $PWD"
"""


class OverHosts(HostShells):
    def tell(self):
        path = self.dir / "tell.sh"
        path.write_text(TELL)
        path.chmod(0o755)
        return path

    def told(self, process):
        return sorted(line for line in process.out.read_text().splitlines() if "rank" in line)

    def test_one_world_in_the_order_of_the_list(self):
        job = self.starter("-H", f"{self.list_of(2, 1, slots=2)},{self.hosts.ip(3)}", self.tell())
        self.assertEqual(job.wait(), 0, job.errors())
        at = f"at {self.hosts.ip(2)}, in {os.getcwd()}"
        self.assertEqual(self.told(job), sorted(
            f"[{self.hosts.ip(host)}] rank {rank} of 5, node {node} of 3, {at}"
            for rank, (node, host) in enumerate([(0, 2), (0, 2), (1, 1), (1, 1), (2, 3)])))
        self.assert_hosts_empty(1, 2, 3)

    def test_the_starting_host_may_be_in_the_list(self):
        for hosts in (f"{self.list_of(1, 2)}", f"localhost,{self.hosts.ip(2)}", f"{self.hosts.ip(2)},localhost"):
            with self.subTest(hosts=hosts):
                job = self.starter("-H", hosts, self.tell(), on=1, name="at" + hosts.replace(",", "-"))
                self.assertEqual(job.wait(), 0, job.errors())
                told = self.told(job)
                self.assertEqual(len(told), 2, told)
                first = 2 if hosts.startswith(self.hosts.ip(2)) else 1
                for line in told:
                    self.assertIn(f"of 2, at {self.hosts.ip(first)},", line)

    def test_a_hostfile_include_and_exclude(self):
        (self.dir / "hf").write_text(f"# all\n{self.hosts.ip(1)} slots=2\n{self.hosts.ip(2)}:1\n{self.hosts.ip(3)}\n")
        job = self.starter(f"--hostfile={self.dir}/hf", f"--exclude={self.hosts.ip(2)}", self.tell())
        self.assertEqual(job.wait(), 0, job.errors())
        self.assertEqual(len(self.told(job)), 3)
        job = self.starter(f"--hostfile={self.dir}/hf", f"--include={self.hosts.ip(3)}@{self.hosts.ip(1)}", self.tell(), name="in")
        self.assertEqual(job.wait(), 0, job.errors())
        self.assertIn("rank 0 of 3, node 0 of 2", self.told(job)[2])
        job = self.starter("--hosts=auto", self.tell(), name="pbs", PBS_NODEFILE=str(self.dir / "nodes"))
        self.assertEqual(job.wait(), 2)
        self.assertIn("PBS_NODEFILE", self.last_line(job))
        (self.dir / "nodes").write_text(f"{self.hosts.ip(1)}\n{self.hosts.ip(1)}\n{self.hosts.ip(3)}\n")
        job = self.starter("--hosts=auto", self.tell(), name="pbs2", PBS_NODEFILE=str(self.dir / "nodes"))
        self.assertEqual(job.wait(), 0, job.errors())
        self.assertEqual(len(self.told(job)), 3)

    def test_arguments_variables_and_input_travel_as_they_are(self):
        odd = "it's \"$HOME\" `id` \\ *;&|!\nline"
        (self.dir / "show.py").write_text(
            "import os, sys, time\n"
            "text = sys.stdin.read() if os.environ['RANK'] == '0' else ''\n"
            "open(sys.argv[1] + '/seen.' + os.environ['RANK'], 'w').write(\n"
            "    repr((sys.argv[2:], os.environ.get('MY_SECRET'), os.environ.get('OTHER'), text)))\n"
            "while not os.path.exists(sys.argv[1] + '/stop'): time.sleep(0.02)\n")
        (self.dir / "input").write_text("words for rank 0\n" * 20_000)
        with open(self.dir / "input") as stdin, open(self.dir / "o", "w") as out, open(self.dir / "e", "w") as err:
            job = subprocess.Popen([*self.hosts.on(4), BIN / "ddprun", "-H", self.list_of(1, 2), f"--rsh={self.rsh}",
                                    "-x", "MY_SECRET", self.dir / "show.py", self.dir, odd, ""],
                                   stdin=stdin, stdout=out, stderr=err,
                                   env=self.environment(MY_SECRET="not for ps", OTHER="stays here", PYTHON_EXEC=sys.executable))
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        poll("both have begun", lambda: len(list(self.dir.glob("seen.*"))) == 2)
        for rank in (0, 1):
            seen = poll("it is written", lambda r=rank: (self.dir / f"seen.{r}").read_text())
            arguments, secret, other, text = eval(seen)
            self.assertEqual(arguments, [odd, ""])
            self.assertEqual(secret, "not for ps")
            self.assertEqual(text, (self.dir / "input").read_text() if rank == 0 else "")
        for i in (1, 2):
            self.assertTrue(self.words_on(i))
            for words in self.words_on(i).values():
                self.assertNotIn("not for ps", words)
        self.order("stop")
        self.assertEqual(job.wait(60), 0, (self.dir / "e").read_text())

    def test_input_that_nobody_reads_stays_where_it_is(self):
        (self.dir / "late.py").write_text(
            "import os, sys, time\n"
            "open(sys.argv[1] + '/late.' + os.environ['RANK'], 'w').close()\n"
            "while not os.path.exists(sys.argv[1] + '/read'): time.sleep(0.02)\n"
            "if os.environ['RANK'] == '0': print('got', len(sys.stdin.buffer.read()))\n")
        job = subprocess.Popen([*self.hosts.on(4), BIN / "ddprun", "-H", self.list_of(1, 2), f"--rsh={self.rsh}",
                                self.dir / "late.py", self.dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, env=self.environment(PYTHON_EXEC=sys.executable))
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        self.addCleanup(job.stdout.close)
        pipe, sent, most = job.stdin.fileno(), 0, 64 << 20
        os.set_blocking(pipe, False)
        poll("both have begun", lambda: len(list(self.dir.glob("late.[01]"))) == 2)
        # Full for so long: all pipes on the way are.
        while sent < most and select.select([], [pipe], [], 5)[1]:
            sent += os.write(pipe, bytes(65536))
        self.assertLess(sent, 2 << 20)
        (self.dir / "read").touch()
        os.set_blocking(pipe, True)
        sent += os.write(pipe, bytes(1 << 20))
        job.stdin.close()
        self.assertEqual((job.stdout.read().split()[-1], job.wait(60)), (b"%d" % sent, 0))

    def test_the_last_word_names_host_and_rank(self):
        job = self.starter("-H", self.list_of(1, 2, slots=2), self.tell(), "3", "7")
        self.assertEqual(job.wait(), 7, job.errors())
        self.assertEqual(self.last_line(job), f"ddprun: the job on 2 hosts failed: rank 3 on {self.hosts.ip(2)} "
                                              f"({self.hosts.ns(2)}) ended with exit code 7")
        self.assertEqual(job.errors().count("Root Cause"), 1, "told once, by the host that it happened on")

    def test_signals_reach_all_hosts(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with self.subTest(signal=number):
                job = self.starter("-H", self.list_of(1, 2), *self.worker_words(), name=f"job{number}")
                self.wait_for_world(2)
                job.signal(number)
                self.assertEqual(job.wait(), code, job.errors())
                self.assertIn(f"stopped by {signal.Signals(number).name}", self.last_line(job))
                self.assert_hosts_empty(1, 2)
                for path in self.dir.glob("w.*"):
                    path.unlink()

    def test_a_saved_job_says_so(self):
        job = self.starter("-H", self.list_of(1, 2), "--pass-env=TEST_TERM_CODE", *self.worker_words(), TEST_TERM_CODE="75")
        self.wait_for_world(2)
        job.signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 75, job.errors())
        self.assertIn("saved its state", self.last_line(job))

    def test_a_restart_is_one_for_all(self):
        job = self.starter("-H", self.list_of(1, 2), "--max-restarts=1", *self.worker_words())
        self.wait_for_world(2)
        self.order("rank1.round1", "5")
        self.wait_for_world(2, newer_than=1)
        self.order("stop")
        self.assertEqual(job.wait(), 0, job.errors())

    def test_two_jobs_on_the_same_hosts(self):
        jobs = [self.starter("-H", self.list_of(1, 2, slots=2), self.tell(), name=f"job{i}") for i in range(4)]
        for job in jobs:
            self.assertEqual(job.wait(), 0, job.errors())
            self.assertEqual(len(self.told(job)), 4)
            for line in self.told(job):
                self.assertIn("of 4, node", line)

    def test_more_hosts_than_the_soft_limit_of_open_files_allows(self):
        here = self.dir / "here"
        here.write_text("#!/bin/sh\nshift\nexec sh -c \"$*\"\n")
        here.chmod(0o755)
        job = self.start("starter", "prlimit", "--nofile=64:4096", BIN / "ddprun", "-H", ",".join(f"h{i}" for i in range(30)),
                         f"--rsh={here}", "--no-python", "sh", "-c", "echo limit $(ulimit -Sn)")
        self.assertEqual(job.wait(), 0, job.errors())
        self.assertEqual(sorted(job.out.read_text().splitlines()), sorted(f"[h{i}] limit 64" for i in range(30)))

    def test_an_ordinary_user(self):
        self.dir.chmod(0o777)
        here = self.dir / "here"
        here.write_text("#!/bin/sh\nshift\nexec sh -c \"$*\"\n")
        here.chmod(0o755)
        job = self.starter("-H", "localhost,other:2", "--exit-code=torchrun", self.tell(), "2", "7", rsh=here, prefix=(
            "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"), on=None)
        self.assertEqual(job.wait(), 1, job.errors())
        self.assertIn("rank 2 on other", self.last_line(job))

    def test_addresses_of_ipv6(self):
        for i in (1, 2, 4):
            added = self.hosts._do("ip", "-n", self.hosts.ns(i), "addr", "add", f"fd84::{i}/64", "dev", "eth0", "nodad", check=False)
            if added.returncode != 0:
                self.skipTest("no IPv6: " + added.stderr.strip())
            with open(self.dir / "spaces", "a") as spaces:
                spaces.write(f"fd84::{i} {self.hosts.ns(i)}\n")
        job = self.starter("-H", "[fd84::1]:2,fd84::2", self.tell())
        self.assertEqual(job.wait(), 0, job.errors())
        self.assertEqual(len(self.told(job)), 3)
        self.assertIn("[fd84::1] rank 0 of 3, node 0 of 2, at fd84::1,", self.told(job)[0])

    def test_what_a_login_script_prints_is_no_matter(self):
        noisy = self.dir / "noisy"
        noisy.write_text(f"#!/bin/sh\necho Welcome; echo 'You have mail' >&2\nexec {self.rsh} \"$@\"\n")
        noisy.chmod(0o755)
        job = self.starter("-H", self.list_of(1, 2), self.tell(), rsh=noisy)
        self.assertEqual(job.wait(), 0, job.errors())
        self.assertNotIn("Welcome", job.out.read_text())

    def test_a_console_that_nobody_reads_for_a_while(self):
        (self.dir / "much.sh").write_text("#!/bin/sh\nfor i in $(seq 20000); do echo \"rank $RANK line $i "
                                          "........................................................\"; done\n")
        (self.dir / "much.sh").chmod(0o755)
        read, write = os.pipe()
        job = subprocess.Popen([*self.hosts.on(4), BIN / "ddprun", "-H", self.list_of(1, 2), f"--rsh={self.rsh}",
                                "--host-silence=2", self.dir / "much.sh"], stdin=subprocess.DEVNULL, stdout=write,
                               stderr=subprocess.PIPE, env=self.environment(), text=True)
        self.addCleanup(job.stderr.close)
        os.close(write)
        try:
            subprocess.run(["sleep", "5"], check=True)  # longer than --host-silence: the console is stuck, not the hosts
            with os.fdopen(read, "rb") as stream:
                lines = stream.read().decode().splitlines()
        finally:
            if job.poll() is None and not lines:
                job.kill()
        self.assertEqual(job.wait(60), 0, job.stderr.read())
        self.assertEqual(len(lines), 40_000)
        for line in lines:
            self.assertRegex(line, r"^\[10\.84\.\d+\.[12]\] rank [01] line \d+ \.+$")

    def test_hosts_that_cannot_be_used(self):
        missing = self.dir / "missing"
        missing.write_text(f"#!/bin/sh\n[ $1 = {self.hosts.ip(2)} ] && exec sh -c \"$(echo \"$2\" | sed s,ddprun,ddprum,)\"\n"
                           f"exec {self.rsh} \"$@\"\n")
        missing.chmod(0o755)
        slow = self.dir / "slow"
        slow.write_text(f"#!/bin/sh\n[ $1 = {self.hosts.ip(2)} ] && exec sleep 100\nexec {self.rsh} \"$@\"\n")
        slow.chmod(0o755)
        both = self.list_of(1, 2)
        for rsh, hosts, flags, code, words in (
                (missing, both, (), 69, "cannot be run there: .*not found.*the same path must hold ddprun on every host"),
                (slow, both, ("--host-start-timeout=1",), 69, "no ddprun answered within 1 s"),
                (self.rsh, self.list_of(1) + ",nowhere", (), 69, "nowhere: enter: no route to nowhere"),
                ("/no/such/shell", both, (), 69, "/no/such/shell: No such file"),
                ("no-such-shell", both, (), 69, "no 'no-such-shell' in PATH"),
                ("'unended", both, (), 2, "--rsh: .*does not end"),
                (self.rsh, "a;b", (), 2, "'a;b' is not a host"),
                (self.rsh, both, ("--nnodes=3",), 2, "the list has 2 hosts"),
                (self.rsh, both, ("--max-restarts=x",), 2, "--max-restarts"),
                (self.rsh, both, ("--rdzv-conf=join_timeout=x",), 2, "join_timeout")):
            with self.subTest(words=words):
                name = "bad" + str(len(self.processes))
                job = self.starter("-H", hosts, *flags, self.tell(), rsh=rsh, name=name)
                self.assertEqual(job.wait(), code, job.errors())
                self.assertEqual(len(job.errors().splitlines()), 1, job.errors())
                self.assertRegex(job.errors(), words)
        self.assert_hosts_empty(1, 2)

    def test_a_folder_that_is_not_there(self):
        # The same files on all hosts here: the folder goes while the shell is on its way.
        folder = self.dir / "gone"
        folder.mkdir()
        late = self.dir / "late"
        late.write_text(f"#!/bin/sh\nrmdir {folder} 2>/dev/null; cd /\nexec {self.rsh} \"$@\"\n")
        late.chmod(0o755)
        job = self.start("starter", "sh", "-c", f"cd {folder} && exec \"$@\"", "sh", BIN / "ddprun", f"--rsh={late}", "-H",
                         self.list_of(1, 2), self.tell(), prefix=self.hosts.on(4))
        self.assertEqual(job.wait(), 2, job.errors())
        self.assertRegex(self.last_line(job), f"the working directory {folder} of the starting host: No such file")

    def test_an_elastic_list_begins_without_a_host(self):
        job = self.starter("-H", self.list_of(1, 2) + ",nowhere", "--nnodes=2:3", "--rdzv-conf=last_call_timeout=1",
                           self.tell())
        self.assertEqual(job.wait(), 0, job.errors())
        self.assertEqual(len(self.told(job)), 2)
        self.assertIn("ended well on 2 of 3 hosts; not on nowhere", self.last_line(job))


class OverSsh(SshHosts):
    def test_one_world_and_a_loss(self):
        job = self.starter("-H", self.list_of(1, 2, 3, slots=2), *self.worker_words())
        world = self.wait_for_world(6)
        self.assertEqual({w["master"].rpartition(":")[0] for w in world}, {self.hosts.ip(1)})
        self.order("stop")
        self.assertEqual(job.wait(), 0, job.errors())
        self.assert_hosts_empty(1, 2, 3)

    def test_exit_code_and_last_word(self):
        job = self.starter("-H", self.list_of(1, 2, 3), *self.worker_words())
        self.wait_for_world(3)
        self.order("rank2", "9")
        self.assertEqual(job.wait(), 9, job.errors())
        self.assertIn(f"rank 2 on {self.hosts.ip(3)} ({self.hosts.ns(3)}) ended with exit code 9", self.last_line(job))
        self.assert_hosts_empty(1, 2, 3)

    def test_refusals_in_the_words_of_ssh(self):
        (self.dir / "other").write_text("")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.dir / "stranger"], check=True)
        for rsh, hosts, words in (
                (self.ssh(f"-o IdentityFile={self.dir}/stranger -o IdentitiesOnly=yes").replace(
                    f"-i {self.dir}/user_key", ""), (1, 2), "Permission denied"),
                (self.ssh().replace("known_hosts ", "unknown ", 1), (1, 2), "Host key verification failed"),
                (self.ssh(), (1, 4), "Connection refused")):
            with self.subTest(words=words):
                job = self.starter("-H", self.list_of(*hosts), "true", rsh=rsh, on=3, name="no" + words[:4])
                self.assertEqual(job.wait(), 69, job.errors())
                self.assertRegex(self.last_line(job), f"{self.hosts.ip(hosts[1])}: .*{words}")
        self.assert_hosts_empty(1, 2)

    def test_nothing_is_left_when_the_first_launcher_is_killed(self):
        job = self.starter("-H", self.list_of(1, 2, 3), *self.worker_words())
        self.wait_for_world(3)
        job.signal(signal.SIGKILL)
        job.wait()
        self.assert_hosts_empty(1, 2, 3)
        poll("its shells have ended", lambda: not self.pids_on(4), 20)

    def test_a_session_that_dies_is_a_lost_host(self):
        for nnodes, code in (("3", 69), ("2:3", 0)):
            with self.subTest(nnodes=nnodes):
                job = self.starter("-H", self.list_of(1, 2, 3), f"--nnodes={nnodes}", "--rdzv-conf=last_call_timeout=1",
                                   *self.worker_words(), name="job" + nnodes[0])
                self.wait_for_world(3)
                session = [pid for pid, words in self.words_on(3).items() if words.startswith("sshd: ")]
                self.assertTrue(session)
                for pid in session:
                    os.kill(pid, signal.SIGKILL)
                if code == 0:
                    self.wait_for_world(2, newer_than=1)
                    self.order("stop")
                self.assertEqual(job.wait(), code, job.errors())
                self.assertIn(f"{self.hosts.ip(3)}: ", self.last_line(job))
                self.assert_hosts_empty(1, 2, 3)
                for path in [*self.dir.glob("w.*"), self.dir / "stop"]:
                    path.unlink(missing_ok=True)

    def test_the_trainer_trains_one_world(self):
        config = "\n".join(("model: {name: mlp, hidden: [32], classes: 4}",
                            "data: {format: synthetic, samples: 512, sample_shape: [64], batch_size: 16}",
                            "loss: cross_entropy", "optimizer: {name: sgd, lr: 0.05}", "train: {epochs: 2}",
                            f"log: {{file: {self.dir}/train.log}}", ""))
        (self.dir / "x.yaml").write_text(config)
        job = self.starter("-H", self.list_of(1, 2, 3), BIN / "trainer", "--config", self.dir / "x.yaml")
        self.assertEqual(job.wait(), 0, job.errors() + job.out.read_text())
        alone = self.start("alone", BIN / "ddprun", "--nproc-per-node=3", BIN / "trainer", "--config", self.dir / "x.yaml")
        self.assertEqual(alone.wait(), 0, alone.errors())
        self.assertIn("3 rank(s)", job.out.read_text())
        losses = [re.findall(r"mean loss (\S+),", process.out.read_text()) for process in (job, alone)]
        self.assertEqual(len(losses[0]), 2, job.out.read_text())
        self.assertEqual(*losses, "the losses of one host")


if __name__ == "__main__":
    main()
