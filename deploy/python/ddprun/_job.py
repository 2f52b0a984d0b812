"""A job as an object: started, waited for, stopped, and its report."""
from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
from typing import IO, Any, Optional, Sequence, Union

from ddprun._programs import environment, program

_Stream = Union[None, int, IO[Any]]


@dataclasses.dataclass(frozen=True)
class Failure:
    """One worker that failed, as ddprun's report has it. `rank` is None where no worker ran."""
    rank: Optional[int]
    local_rank: Optional[int]
    host: str
    pid: Optional[int]
    exit_code: int
    signal: int
    how: str
    message: str
    remedy: str
    last_lines: Sequence[str]
    log_paths: Sequence[str]
    stopped_by_ddprun: bool
    raw: dict[str, Any] = dataclasses.field(repr=False)

    @classmethod
    def of(cls, raw: dict[str, Any]) -> "Failure":
        known: dict[str, Any] = {field.name: raw.get(field.name) for field in dataclasses.fields(cls)}
        return cls(**{**known, "raw": raw})


@dataclasses.dataclass(frozen=True)
class Report:
    """How a job ended on this node. `raw` is the whole of --report."""
    exit_code: int
    success: bool
    reason: str
    root_cause: Optional[Failure]
    failures: Sequence[Failure]
    raw: dict[str, Any] = dataclasses.field(repr=False)

    def __str__(self) -> str:
        if self.success:
            return "the job ended well"
        cause = self.root_cause
        if cause is None:
            return f"ddprun ended with {self.exit_code}" + (f": {self.reason}" if self.reason else "")
        text = cause.how if cause.rank is None else f"rank {cause.rank} on {cause.host}: {cause.how}"
        text += f": {cause.message}" if cause.message else ""
        text += "".join(f"\n  | {line}" for line in cause.last_lines)
        return text + (f"\nWhat to do: {cause.remedy}" if cause.remedy else "")


class JobFailed(RuntimeError):
    """`report` says how, who and why."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


class Job:
    """One ddprun.

        job = ddprun.Job("--nproc-per-node=2", "train.py", "--lr=0.1").start()
        report = job.wait()

    As a context manager it is stopped at the end of the block. `stdout` and `stderr` as for subprocess.Popen;
    `capture=True` keeps both for `output` instead.
    """

    def __init__(self, *argv: str, env: Optional[dict[str, str]] = None, cwd: Optional[str] = None,
                 stdout: _Stream = None, stderr: _Stream = None, capture: bool = False, called_as: str = "ddprun"):
        self.argv = [str(word) for word in argv]
        self._env, self._cwd, self._stdout, self._stderr, self._called_as = env, cwd, stdout, stderr, called_as
        self._capture = capture
        self._process: Optional[subprocess.Popen[Any]] = None
        self._folder = ""
        self._report: Optional[Report] = None

    def start(self) -> "Job":
        if self._process is not None:
            raise RuntimeError("this job was started before; make another Job")
        path = program("ddprun")
        self._folder = tempfile.mkdtemp(prefix="ddprun-job-")
        extra = {"DDPRUN_REPORT": os.path.join(self._folder, "report.json"),
                 "DDPRUN_PROGRESS_DIR": os.path.join(self._folder, "progress"), **(self._env or {})}
        self._report_path = extra["DDPRUN_REPORT"]
        os.mkdir(os.path.join(self._folder, "progress"))
        self._begun = os.stat(self._folder).st_mtime
        try:
            # A file takes everything, whether somebody reads or not.
            both = open(os.path.join(self._folder, "output"), "wb") if self._capture else None
            try:
                # A session of its own: Ctrl-C in a notebook or a terminal reaches us, and we pass it on once.
                self._process = subprocess.Popen(
                    [self._called_as, *self.argv], executable=path, env=environment(extra), cwd=self._cwd,
                    stdout=both or self._stdout, stderr=subprocess.STDOUT if both else self._stderr,
                    start_new_session=True)
            finally:
                if both:
                    both.close()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    @property
    def process(self) -> "subprocess.Popen[Any]":
        if self._process is None:
            raise RuntimeError("this job was not started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._report is None and self._process.poll() is None

    def signal(self, number: int) -> None:
        """To ddprun, which forwards SIGUSR1 and SIGUSR2 and stops the job for SIGTERM, SIGINT, SIGHUP and SIGQUIT."""
        self.process.send_signal(number)

    @property
    def output(self) -> str:
        """With `capture`: what the job has written so far."""
        with open(os.path.join(self._folder, "output"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def progress(self) -> dict[int, dict[str, Any]]:
        """What the workers of this node last said with report_progress()."""
        return read_progress(os.path.join(self._folder, "progress"))

    def wait(self, timeout: Optional[float] = None) -> Report:
        """Until the job has ended. Raises subprocess.TimeoutExpired after `timeout` seconds; the job then goes on."""
        if self._report is None:
            try:
                self.process.wait(timeout)
            except KeyboardInterrupt:
                self.process.send_signal(signal.SIGINT)
                self.process.wait()
                self._finish()
                raise
            self._finish()
        assert self._report is not None
        return self._report

    def stop(self, patience: Optional[float] = None) -> Report:
        """SIGTERM and its end. ddprun itself gives the workers --shutdown-timeout; `patience` bounds the wait for it."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            try:
                return self.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()  # the workers end with it
        return self.wait()

    def __enter__(self) -> "Job":
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        if getattr(self, "_folder", "") and not self.running:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _own_reports(self) -> list[str]:
        """Where the report lies if the caller's own --report has won over ours."""
        found = [following if word == "--report" else word[len("--report="):]
                 for word, following in zip(self.argv, [*self.argv[1:], ""])
                 if word == "--report" or word.startswith("--report=")]
        return [os.path.join(self._cwd or "", path) for path in found if path]

    def _finish(self) -> None:
        code = self.process.returncode
        raw: dict[str, Any] = {}
        for path in (self._report_path, *self._own_reports()):
            try:
                with open(path, encoding="utf-8") as file:
                    found = json.load(file)
                    written = os.fstat(file.fileno()).st_mtime
                # A file of another job, or of the script, is no report of this one.
                if written >= self._begun and isinstance(found, dict) and "failures" in found:
                    raw = found
                    break
            except (OSError, ValueError):
                pass  # a bad flag, or ddprun itself was killed: there is only the code
        cause = raw.get("root_cause")
        self._report = Report(exit_code=128 - code if code < 0 else code, success=code == 0,
                              reason=raw.get("reason", ""), root_cause=Failure.of(cause) if cause else None,
                              failures=[Failure.of(failure) for failure in raw.get("failures", [])], raw=raw)


def read_progress(folder: str) -> dict[int, dict[str, Any]]:
    out: dict[int, dict[str, Any]] = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        if name.isdigit():
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    out[int(name)] = json.load(file)
            except (OSError, ValueError):
                continue
    return dict(sorted(out.items()))


def run(argv: Sequence[str], *, check: bool = False, timeout: Optional[float] = None,
        **options: Any) -> Report:
    """`ddprun ARGV` to its end. With `check` a job that fails raises JobFailed; after `timeout` seconds it is stopped
    and subprocess.TimeoutExpired is raised. Further options: those of Job."""
    with Job(*argv, **options) as job:
        report = job.wait(timeout)
    if check and not report.success:
        raise JobFailed(report)
    return report
