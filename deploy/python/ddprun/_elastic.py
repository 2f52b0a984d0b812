"""A function, or a command, on all ranks of this node: torch.distributed.launcher.api's elastic_launch, done by ddprun."""
from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Callable, Optional, Union

from ddprun import _payload
from ddprun._job import Job, JobFailed, Report
from ddprun._signals import Forwarding
from ddprun._streams import Pump


@dataclasses.dataclass
class LaunchConfig:
    """The fields of torch's LaunchConfig; torch's own is taken as well. `start_method` and `metrics_cfg` are not needed:
    every worker is a fresh interpreter, so that no lock or thread of this process is copied into it."""
    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: Union[int, str] = 1
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_configs: dict[str, Any] = dataclasses.field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: dict[str, str] = dataclasses.field(default_factory=dict)
    local_addr: Optional[str] = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: Optional[list[str]] = None
    duplicate_stderr_filters: Optional[list[str]] = None
    virtual_local_rank: bool = False
    shutdown_timeout: Optional[int] = None


class WorkersFailed(JobFailed):
    """Where torch is loaded, this is torch's ChildFailedError too: `failures` by rank, get_first_failure()."""


def _mask(value: Any, option: str) -> list[str]:
    """torch's Std, or {local rank: Std}."""
    if isinstance(value, dict):
        return [f"--{option}=" + ",".join(f"{rank}:{int(std)}" for rank, std in value.items())] if value else []
    return [f"--{option}={int(value)}"] if value else []


def to_arguments(config: Any) -> list[str]:
    """ddprun's options for a LaunchConfig, ours or torch's."""
    conf = dict(config.rdzv_configs)
    node_rank = conf.pop("rank", None)
    if getattr(config, "rdzv_timeout", -1) != -1:
        conf["timeout"] = config.rdzv_timeout
    if config.rdzv_backend != "static" and conf.get("timeout") == 900:
        del conf["timeout"]  # torch's LaunchConfig always sets it; only its static backend reads it
    out = [f"--nproc-per-node={config.nproc_per_node}", f"--max-restarts={config.max_restarts}",
           f"--role={config.role}", f"--signals-to-handle={config.signals_to_handle}",
           f"--event-log-handler={config.event_log_handler}"]  # monitor_interval: nothing is polled
    one_node = config.min_nodes == config.max_nodes == 1
    host, _, port = config.rdzv_endpoint.rpartition(":")
    if one_node and (not config.rdzv_endpoint or (host in ("localhost", "127.0.0.1") and port == "0")):
        out.append("--standalone")
    else:
        out += [f"--nnodes={config.min_nodes}:{config.max_nodes}", f"--rdzv-backend={config.rdzv_backend}",
                f"--rdzv-endpoint={config.rdzv_endpoint}"]
    if config.run_id:
        out.append(f"--rdzv-id={config.run_id}")
    if node_rank is not None:
        out.append(f"--node-rank={node_rank}")
    if conf:
        out.append("--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in conf.items()))
    for name in ("log_line_prefix_template", "local_addr", "shutdown_timeout"):
        value = getattr(config, name, None)
        if value is not None:
            out.append(f"--{name.replace('_', '-')}={value}")
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        if getattr(config, name, None):
            out.append(f"--{name.replace('_', '-')}=" + ",".join(f.replace(",", ",,") for f in getattr(config, name)))
    if getattr(config, "virtual_local_rank", False):
        out.append("--virtual-local-rank")
    if config.numa_options is not None:
        out.append(f"--numa-binding={config.numa_options.affinity_mode.value}")
    logs = config.logs_specs
    if logs is not None:
        if getattr(logs, "_root_log_dir", None) and getattr(logs, "_run_log_dir", None) is None:
            out.append(f"--log-dir={logs._root_log_dir}")
        out += _mask(getattr(logs, "_redirects", 0), "redirects") + _mask(getattr(logs, "_tee", 0), "tee")
        if getattr(logs, "_local_ranks_filter", None):
            out.append("--local-ranks-filter=" + ",".join(map(str, sorted(logs._local_ranks_filter))))
    return out


class elastic_launch:  # noqa: N801, torch's name
    """`elastic_launch(config, function)(*args)` gives {rank: what it returned} of this node's ranks;
    `elastic_launch(config, "python")("script.py", "--lr=0.1")` runs a command and gives {rank: None} on one node."""

    def __init__(self, config: Any, entrypoint: Union[Callable[..., Any], str, None], health_check_server: Any = None):
        self._config, self._entrypoint = config, entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        options = to_arguments(self._config)
        if not callable(self._entrypoint):
            if not self._entrypoint:
                raise ValueError("elastic_launch needs a function or a command")
            launch([*options, "--no-python", str(self._entrypoint), *map(str, args)])
            ranks = self._config.nproc_per_node if "--standalone" in options else 0
            return {rank: None for rank in range(ranks)} if isinstance(ranks, int) else {}
        folder = tempfile.mkdtemp(prefix="ddprun-call-")
        try:
            _payload.write(os.path.join(folder, "call"), self._entrypoint, args)
            name = getattr(self._entrypoint, "__qualname__", "function")
            launch([*options, "-m", "ddprun._call", folder], name=name)
            return _payload.read_results(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def launch(arguments: list[str], *, called_as: str = "ddprun", name: str = "") -> Report:
    """A job in the foreground: signals go to it, its words to sys.stderr. Raises ValueError for bad arguments and
    WorkersFailed for a job that failed; a stop signal is raised again once the job has ended."""
    # On a terminal everything is inherited, so that progress bars and debuggers work.
    on_terminal = sys.__stderr__ is not None and sys.stderr is sys.__stderr__ and sys.__stderr__.isatty()
    pump = None if on_terminal else Pump(sys.stderr)
    out = None if sys.stdout is sys.__stdout__ else Pump(sys.stdout)
    job = Job(*arguments, called_as=called_as, stdout=subprocess.PIPE if out else None,
              stderr=subprocess.PIPE if pump else None)
    if sys.stdout is not None:
        sys.stdout.flush()  # before the job writes to the same file
    with Forwarding() as signals:
        with job:
            signals.attach(job.process)
            for stream, source in ((out, job.process.stdout), (pump, job.process.stderr)):
                if stream is not None:
                    stream.start(source)
            report = job.wait()
            for stream in (out, pump):
                if stream is not None:
                    stream.join()
        signals.raise_again()
    if report.success:
        return report
    if report.exit_code == 2 and not report.failures:
        raise ValueError(pump.last_line if pump and pump.last_line else f"{' '.join(arguments)}: see above")
    raise failed(report, name)


def failed(report: Report, name: str = "") -> WorkersFailed:
    if "torch" in sys.modules and any(failure.rank is not None for failure in report.failures):
        from ddprun.torch._errors import child_failed
        return child_failed(report, name)
    return WorkersFailed(report)
