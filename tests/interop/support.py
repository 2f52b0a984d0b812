"""What the interop tests share: runs a program of the build with a hard limit and leaves nothing behind.

class MyTest(InteropTest):
    def test_x(self):
        script = self.script("train.py")                # of tests/interop/scripts
        run = self.ddprun("--standalone", "--nproc-per-node=2", script, limit=120)
        self.assertEqual(run.code, 0, run)              # `run` prints command, exit code and both outputs
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import uuid

HERE = pathlib.Path(__file__).resolve().parent
BUILD_DIR = pathlib.Path(os.environ.get("DDPRUN_BUILD_DIR", HERE.parent.parent / "build" / "release")).resolve()
# Generous: a loaded machine with two cores needs 10 s for what an idle one does in 3.
DEFAULT_LIMIT_S = 240
# A thread of torch's Gloo group that drops the last reference to a tensor while the interpreter shuts down takes the
# process with it (Python 3.11 ends that thread by pthread_exit inside noexcept code; a backtrace from the terminate
# handler shows ProcessGroupGloo::runLoop > decref_pyobject > PyEval_AcquireThread > pthread_exit). A script that ends right
# after a collective without destroy_process_group() does it in about one run of seven, with any launcher. Such a run is repeated, and said so.
TORCHS_OWN_ABORT = "terminate called without an active exception"
# What a developer's shell may hold and what would change the meaning of a test.
FOREIGN = ("PET_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "DDPRUN_", "SLURM_",
           "PYTHON_EXEC", "TORCH_", "GLOO_")


class Run:
    """One finished program."""

    def __init__(self, command, code, out, err, seconds, timed_out):
        self.command, self.code, self.out, self.err = command, code, out, err
        self.seconds, self.timed_out = seconds, timed_out

    def __str__(self):
        how = "timed out" if self.timed_out else f"exit {self.code}"
        return (f"{' '.join(map(str, self.command))}\n{how} after {self.seconds:.1f} s\n"
                f"--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-8000:]}")


class Running:
    """A program that runs; always ended by the test's clean-up."""

    def __init__(self, command, env, cwd):
        self.command, self.start = command, time.monotonic()
        self.process = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, start_new_session=True)
        self.pid = self.process.pid
        self._text = {"out": bytearray(), "err": bytearray()}
        self._readers = []
        for name, stream in (("out", self.process.stdout), ("err", self.process.stderr)):
            reader = threading.Thread(target=self._pump, args=(name, stream), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _pump(self, name, stream):
        while chunk := os.read(stream.fileno(), 65536):
            self._text[name] += chunk

    @property
    def out(self):
        return self._text["out"].decode(errors="replace")

    @property
    def err(self):
        return self._text["err"].decode(errors="replace")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, limit=DEFAULT_LIMIT_S):
        timed_out = False
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            timed_out = True
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for reader in self._readers:  # a process that was left behind may hold a pipe open
            reader.join(10)
        return Run(self.command, self.process.returncode, self.out, self.err, time.monotonic() - self.start, timed_out)


ACTIVE = []  # the test that runs now: what the runner must end when it is told to stop


class InteropTest(unittest.TestCase):
    def setUp(self):
        ACTIVE.append(self)
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-interop-"))
        self.mark = f"interop-{uuid.uuid4().hex}"  # in the environment of everything that this test starts
        self._running = []
        self.addCleanup(self._clean_up)

    def _clean_up(self):
        for running in self._running:
            if running.process.poll() is None:
                running.process.terminate()
                try:
                    running.process.wait(10)
                except subprocess.TimeoutExpired:
                    running.process.kill()
                    running.process.wait()
        left = self.wait_for_none_left(10)
        self.kill_everything()
        ACTIVE.remove(self)
        self.assertEqual(left, [], "processes were left behind (now killed)")

    def kill_everything(self):
        for pid, _ in self._mine():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)

    def _mine(self):
        """(pid, command) of the living processes that this test started."""
        needle = f"DDPRUN_INTEROP_MARK={self.mark}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as stream:
                    if needle not in stream.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry}/cmdline", "rb") as stream:
                    found.append((int(entry), stream.read().replace(b"\0", b" ").decode(errors="replace").strip()))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def wait_for_none_left(self, limit):
        """What still runs of this test's processes after at most `limit` seconds."""
        end = time.monotonic() + limit
        while (left := self._mine()) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def environment(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        env["PYTHON_EXEC"] = sys.executable
        env["DDPRUN_INTEROP_MARK"] = self.mark
        env["OMP_NUM_THREADS"] = "1"  # two cores for everybody
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        env["PYTHONFAULTHANDLER"] = "1"  # a crash inside torch shows where
        env.update({k: str(v) for k, v in more.items()})
        return env

    def script(self, name):
        return str(HERE / "scripts" / name)

    def write(self, name, text):
        path = self.dir / name
        path.write_text(text)
        return str(path)

    def start(self, program, *arguments, env=None):
        """Starts a program of the build (or one with a path) and returns at once."""
        path = program if os.path.sep in str(program) else BUILD_DIR / program
        if not os.access(path, os.X_OK):
            self.fail(f"{path} is missing: build it first")
        running = Running([str(path), *map(str, arguments)], self.environment(**(env or {})), self.dir)
        self._running.append(running)
        return running

    def run_program(self, program, *arguments, limit=DEFAULT_LIMIT_S, env=None):
        python_script = any(str(a).endswith(".py") for a in arguments)
        for left in (2, 1, 0):
            run = self.start(program, *arguments, env=env).wait(limit)
            if run.timed_out:
                self.fail(f"the hard limit of {limit} s passed\n{run}")
            if not left or run.code == 0 or not python_script or TORCHS_OWN_ABORT not in run.err:
                return run
            print(f"[again: torch aborted by itself: {run.err[run.err.index(TORCHS_OWN_ABORT):][:1500]}] ", end="",
                  flush=True)

    def ddprun(self, *arguments, limit=DEFAULT_LIMIT_S, env=None):
        return self.run_program("ddprun", *arguments, limit=limit, env=env)

    def wait_until(self, condition, what, limit=60):
        end = time.monotonic() + limit
        while not (value := condition()):
            if time.monotonic() >= end:
                self.fail(f"not within {limit} s: {what}")
            time.sleep(0.02)
        return value
