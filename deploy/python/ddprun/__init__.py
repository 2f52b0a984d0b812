"""ddprun from Python: jobs as objects, functions on N ranks, and what a worker may say. Imports no torch."""
from __future__ import annotations

from ddprun._elastic import LaunchConfig, WorkersFailed, elastic_launch
from ddprun._job import Failure, Job, JobFailed, Report, run
from ddprun._worker import Environment, env, is_launched, on_preemption, record, report_progress

__all__ = ["Environment", "Failure", "Job", "JobFailed", "LaunchConfig", "Report", "WorkersFailed", "elastic_launch",
           "env", "is_launched", "on_preemption", "record", "report_progress", "run"]


def __getattr__(name: str) -> str:
    if name == "__version__":  # importlib.metadata is slow to import: only for who asks
        from importlib.metadata import version
        return version("ddprun")
    raise AttributeError(f"module 'ddprun' has no attribute '{name}'")
