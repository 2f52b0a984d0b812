"""A pytest test on N ranks: `@pytest.mark.ranks(4)`, or `ranks=[1, 2, 4]` for one run each.

Each rank is a pytest of its own under ddprun that runs this one test; the test fails if one rank does, with the root
cause's last lines. Inside, ddprun.env() and torch.distributed.init_process_group() work.
"""
from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Iterable, Optional

import pytest

from ddprun._job import Job
from ddprun._worker import env, is_launched

_INSIDE = "DDPRUN_PYTEST_RANKS"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ranks(n, timeout=300): run the test on n ranks of a ddprun job of its own")


def _counts(marker: pytest.Mark) -> list[int]:
    given: Any = marker.args[0] if marker.args else marker.kwargs.get("n")
    counts = list(given) if isinstance(given, (list, tuple)) else [given]
    if not counts or not all(isinstance(count, int) and count > 0 for count in counts):
        raise pytest.UsageError(f"ranks({given!r}): give a positive number of ranks, or a list of them")
    return counts


@pytest.fixture
def rank() -> int:
    """This rank's number in a test that is marked with `ranks`."""
    return env().rank


@pytest.fixture
def world_size() -> int:
    return env().world_size


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: Optional[pytest.Item]) -> Optional[bool]:
    marker = item.get_closest_marker("ranks")
    if marker is None or (os.environ.get(_INSIDE) and is_launched()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _outside(item, marker):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _outside(item: pytest.Item, marker: pytest.Mark) -> Iterable[pytest.TestReport]:
    timeout = float(marker.kwargs.get("timeout", 300))

    def call() -> None:
        for mark in item.iter_markers("skip"):
            pytest.skip(mark.kwargs.get("reason", "skipped"))
        for count in _counts(marker):
            _on_ranks(item, count, timeout)

    info = pytest.CallInfo.from_call(call, "call")
    yield pytest.TestReport.from_item_and_call(item, info)


def _on_ranks(item: pytest.Item, count: int, timeout: float) -> None:
    plugins = [word for plugin in item.config.getoption("plugins") or [] for word in ("-p", plugin)]
    job = Job("--standalone", f"--nproc-per-node={count}", "--tee=3", "--log-dir=/dev/null", "-m", "pytest", "-q",
              "-x", "--no-header", "-p", "no:cacheprovider", *plugins, f"--rootdir={item.config.rootpath}",
              item.nodeid, env={_INSIDE: str(count), "PYTHON_EXEC": sys.executable}, cwd=str(item.config.rootpath),
              capture=True)
    with job:
        try:
            report = job.wait(timeout)
        except subprocess.TimeoutExpired:
            job.stop(30)
            pytest.fail(f"{count} ranks: not done after {timeout:g} s\n{job.output[-4000:]}", pytrace=False)
        # Skipped on all ranks is skipped. Each rank runs one test, and says so.
        if report.success and job.output.count("1 skipped") >= count:
            pytest.skip(f"skipped on all {count} ranks")
        if not report.success:
            pytest.fail(f"{count} ranks: {report}\n{job.output[-6000:]}", pytrace=False)
