"""What the rendezvous tests share: processes that are ended by pid, workers that say when they live, the worlds that ran.

Standard library only. DDPRUN_BINARY_DIR names the folder with the programs.
"""
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BIN = pathlib.Path(os.environ.get("DDPRUN_BINARY_DIR", "build/release")).resolve()
LIMIT = 60  # seconds that any single wait may take on a busy machine

# A worker: says when it lives (monotonic clock, shared by all "hosts" of this machine), ends as it is told.
WORKER = r"""
import json, os, signal, sys, time
folder, beat = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
e = os.environ
me = {"round": int(e["DDPRUN_ROUND"]), "rank": int(e["RANK"]), "world": int(e["WORLD_SIZE"]), "pid": os.getpid(),
      "restart": int(e["TORCHELASTIC_RESTART_COUNT"]), "group": int(e["GROUP_RANK"]), "start": time.monotonic(),
      "host": os.environ.get("TEST_HOST", ""), "master": e["MASTER_ADDR"] + ":" + e["MASTER_PORT"]}
path = f"{folder}/w.{os.getpid()}.{me['round']}"
def note(**more):
    with open(path + ".tmp", "w") as f:
        json.dump({**me, "last": time.monotonic(), **more}, f)
    os.rename(path + ".tmp", path)
def end(code):
    note(end=time.monotonic(), code=code)
    os._exit(code)
def term(*_):
    limit = time.monotonic() + float(os.environ.get("TEST_TERM_DELAY", "0"))
    while time.monotonic() < limit:
        time.sleep(0.02)
        note()
    end(int(os.environ.get("TEST_TERM_CODE", "143")))
signal.signal(signal.SIGTERM, term)
note()
orders = [f"{folder}/stop", f"{folder}/rank{me['rank']}", f"{folder}/rank{me['rank']}.round{me['round']}"]
while True:
    for path_of_order in orders:
        try:
            with open(path_of_order) as f:
                end(int(f.read() or 0))
        except OSError:
            pass
    time.sleep(beat)
    note()
"""


def remove_groups(pids):
    """Removes the empty control groups that launchers made whose guard was killed with them: a power cut leaves none."""
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        for folder, names, _ in os.walk(root):  # unlike glob it does not mind that groups of others go meanwhile
            for name in names:
                if name.startswith("ddprun-") and name.removeprefix("ddprun-").partition(".")[0] in {str(pid) for pid in pids}:
                    try:
                        os.rmdir(os.path.join(folder, name))
                    except OSError:
                        pass  # a member is dying still, or the guard was faster


def poll(what, condition, limit=LIMIT):
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"after {limit} s still not: {what}")
        time.sleep(0.02)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Process:
    def __init__(self, name, command, folder, env):
        self.name, self.command = name, command
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        with open(self.out, "ab") as out, open(self.err, "ab") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env,
                                            start_new_session=True)
        self.pid = self.process.pid

    def wait(self, limit=LIMIT):
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {limit} s:\n{self.errors()}") from None

    def errors(self):
        return self.err.read_text(errors="replace")

    def signal(self, number):
        if self.process.poll() is None:
            os.kill(self.pid, number)


class RendezvousTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-rdzv-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.token = f"{os.getpid()}-{time.monotonic_ns()}"
        self.processes = []
        self.addCleanup(self.kill_all)
        (self.dir / "worker.py").write_text(WORKER)

    def environment(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC_"))}
        return {**env, "DDPRUN_TEST_TOKEN": self.token, "PYTHONDONTWRITEBYTECODE": "1", **more}

    def start(self, name, *command, prefix=(), **env):
        words = [*prefix, *map(str, command)]
        process = Process(name, words, self.dir, self.environment(**env))
        self.processes.append(process)
        return process

    def tagged(self):
        """Pids of everything that this test started, directly or not."""
        found, mark = [], f"DDPRUN_TEST_TOKEN={self.token}".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as f:
                    if mark in f.read().split(b"\0") and running(int(entry)):
                        found.append(int(entry))
            except OSError:
                pass
        return found

    def kill_all(self):
        killed = set()
        for _ in range(3):
            for pid in self.tagged():
                killed.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
        for process in self.processes:
            process.process.wait()
        remove_groups(killed)

    def assert_nothing_left(self, *but):
        keep = {p.pid for p in but}
        poll("no process is left", lambda: not set(self.tagged()) - keep, 10)

    def daemon(self, port, name="daemon", prefix=(), extra=(), **env):
        process = self.start(name, BIN / "ddprun-rendezvous", "--port", port, *extra, prefix=prefix, **env)
        poll("the daemon serves", lambda: "serving port" in process.errors().rpartition("stopped")[2] or
             process.process.poll() is not None)
        self.assertIsNone(process.process.poll(), process.errors())
        return process

    def node(self, name, endpoint, *flags, nnodes="2", nproc=1, conf="", prefix=(), worker=None, **env):
        options = [f"--nnodes={nnodes}", f"--nproc-per-node={nproc}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                   "--rdzv-id=job"]
        if conf:
            options.append(f"--rdzv-conf={conf}")
        command = worker or [self.dir / "worker.py", self.dir]
        return self.start(name, BIN / "ddprun", *options, *flags, *command, prefix=prefix, TEST_HOST=name, **env)

    def workers(self):
        import json
        found = []
        for path in self.dir.glob("w.*"):
            if path.suffix != ".tmp":
                try:
                    found.append(json.loads(path.read_text()))
                except OSError:
                    pass
        return sorted(found, key=lambda w: (w["round"], w["rank"], w["start"]))

    def alive(self):
        return [w for w in self.workers() if running(w["pid"]) and "end" not in w]

    def wait_for_world(self, size, newer_than=0, limit=LIMIT):
        """The workers of a whole world of `size` ranks of a round > `newer_than`, all alive."""
        def whole():
            ranks = {w["rank"]: w for w in self.alive() if w["round"] > newer_than and w["world"] == size}
            if len(ranks) == size and len({w["round"] for w in ranks.values()}) == 1:
                return list(ranks.values())
            return None
        try:
            return poll(f"a world of {size} runs", whole, limit)
        except AssertionError as error:
            logs = "\n".join(f"--- {p.name}\n{p.errors()[-3000:]}" for p in self.processes)
            raise AssertionError(f"{error}; workers: {self.workers()}\n{logs}") from None

    def order(self, name, text="0"):
        """A file that workers obey: stop, rank1, rank1.round2; its text is the exit code."""
        temporary = self.dir / f".{name}"
        temporary.write_text(text)
        temporary.rename(self.dir / name)

    def end_well(self, *nodes):
        self.order("stop")
        for node in nodes:
            self.assertEqual(node.wait(), 0, node.errors())

    def assert_one_world_at_a_time(self, slack=0.0):
        """Workers that live at the same time are of one round, and no two have one rank."""
        seen = sorted(self.workers(), key=lambda w: w["start"])
        for i, one in enumerate(seen):
            gone = one.get("end", one["last"])
            for other in seen[i + 1:]:
                if other["start"] >= gone - slack:
                    continue  # began when this one had ended
                self.assertEqual(one["round"], other["round"], f"two live worlds: {one} and {other}")
                self.assertNotEqual(one["rank"], other["rank"], f"a rank twice: {one} and {other}")

    def ctl(self, endpoint, *words, prefix=()):
        return subprocess.run([*prefix, BIN / "ddpctl", "--rdzv-endpoint", endpoint, *words], capture_output=True,
                              text=True, timeout=LIMIT, env=self.environment(), check=False)


def hello(version=3, kind=1):
    return b"DDPRRDZV" + struct.pack("<HB", version, kind)


def in_threads(work, width):
    """Runs work() in so many threads and waits for all of them."""
    threads = [threading.Thread(target=work) for _ in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_together(class_name, width):
    """All tests of a class, `width` at a time: they wait most of the time. Exit 77 when all were skipped."""
    cases = list(unittest.defaultTestLoader.loadTestsFromName(class_name, sys.modules["__main__"]))
    todo, results, lock = iter(cases), [], threading.Lock()

    def work():
        while True:
            with lock:
                case = next(todo, None)
            if case is None:
                return
            begin, result = time.monotonic(), unittest.TestResult()
            case.run(result)
            problems = [text for _, text in result.failures + result.errors]
            skipped = [reason for _, reason in result.skipped]
            outcome = "FAILED\n" + "\n".join(problems) if problems else f"skipped: {skipped[0]}" if skipped else "ok"
            with lock:
                results.append((bool(problems), bool(skipped)))
                print(f"{case.id()} ({time.monotonic() - begin:.1f} s) ... {outcome}", file=sys.stderr)
    in_threads(work, width)
    if not results or any(failed for failed, _ in results):
        sys.exit(1)
    sys.exit(77 if all(skipped for _, skipped in results) else 0)


def main():
    """python3 FILE [Class.test ...] or python3 FILE --together Class; exit 77 when all that was asked for was skipped."""
    if sys.argv[1:2] == ["--together"]:
        run_together(sys.argv[2], 4)
    program = unittest.main(module="__main__", exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.testsRun == len(result.skipped) else 0)
