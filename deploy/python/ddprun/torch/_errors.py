"""A report as torch's ChildFailedError."""
from __future__ import annotations

import atexit
import datetime
import functools
import json
import os
import shutil
import tempfile
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ddprun._elastic import WorkersFailed
from ddprun._job import Failure, Report


class ChildrenFailed(ChildFailedError, WorkersFailed):  # type: ignore[misc, unused-ignore]  # torch may be untyped
    """Caught by `except ChildFailedError` and by `except ddprun.WorkersFailed`."""

    def __init__(self, name: str, failures: dict[int, ProcessFailure], report: Report):
        ChildFailedError.__init__(self, name, failures)
        self.report = report


@functools.lru_cache(maxsize=None)
def _folder() -> str:
    # torch's @record copies error files when the exception reaches it: they stay until this process ends.
    path = tempfile.mkdtemp(prefix="ddprun-errors-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _process_failure(failure: Failure) -> ProcessFailure:
    path = os.path.join(_folder(), f"{failure.pid}-error.json")
    content = failure.raw.get("error_file")
    if isinstance(content, dict) and "message" in content:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
    code = -failure.signal if failure.signal else failure.exit_code
    out = ProcessFailure(local_rank=failure.local_rank or 0, pid=failure.pid or 0, exitcode=code, error_file=path)
    lines = "".join(f"\n| {line}" for line in failure.last_lines)
    more = f"\nWhat to do: {failure.remedy}" if failure.remedy else ""
    if isinstance(out.message, dict):  # with a traceback, which the last lines would only say again
        extra: dict[str, Any] = out.message.setdefault("extraInfo", {})
        extra["py_callstack"] = (extra.get("py_callstack") or str(out.message.get("message", "")) + lines) + more
    elif more := lines + more:
        out.message = (failure.message or out.message) + more
    if not os.path.exists(path):
        when = failure.raw.get("time")  # the root cause is the earliest, so this has to be the time of the failure
        if when:
            out.timestamp = int(datetime.datetime.fromisoformat(when.replace("Z", "+00:00")).timestamp())
    return out


def child_failed(report: Report, name: str) -> ChildrenFailed:
    failures = {failure.rank: _process_failure(failure)
                for failure in report.failures if failure.rank is not None and not failure.stopped_by_ddprun}
    cause = report.root_cause
    if cause is not None and cause.rank is not None:
        # First: of several in the same second torch names the first as root.
        failures = {cause.rank: _process_failure(cause), **failures}
    return ChildrenFailed(name or report.raw.get("entrypoint", "job"), failures, report)
