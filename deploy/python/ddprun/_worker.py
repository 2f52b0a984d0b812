"""For the training script: who am I, save before the end, tell how far I am, leave the exception behind."""
from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, Callable, Sequence, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

# "State saved, start me again": sysexits' EX_TEMPFAIL, which ddprun passes on when all workers end with it.
SAVED = 75


@dataclasses.dataclass(frozen=True)
class Environment:
    """What a launcher told this worker; without one, a world of one."""
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    group_rank: int
    master_addr: str
    master_port: int
    restart_count: int
    run_id: str


def is_launched() -> bool:
    """Whether ddprun, torchrun or another launcher with torch's variables started this process."""
    return all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def env() -> Environment:
    def number(name: str, default: int) -> int:
        text = os.environ.get(name) or str(default)
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name}={text} is no number: was it set by hand? A launcher sets it") from None

    launched = is_launched()
    rank = number("RANK", 0) if launched else 0
    world_size = number("WORLD_SIZE", 1) if launched else 1
    if not 0 <= rank < world_size:
        raise ValueError(f"RANK={rank} but WORLD_SIZE={world_size}: ranks go from 0 to {world_size - 1}")
    return Environment(
        rank=rank, local_rank=number("LOCAL_RANK", 0) if launched else 0, world_size=world_size,
        local_world_size=number("LOCAL_WORLD_SIZE", 1) if launched else 1, group_rank=number("GROUP_RANK", 0),
        master_addr=os.environ.get("MASTER_ADDR", "127.0.0.1"), master_port=number("MASTER_PORT", 0),
        restart_count=number("TORCHELASTIC_RESTART_COUNT", 0), run_id=os.environ.get("TORCHELASTIC_RUN_ID", "none"))


def on_preemption(save: Callable[[], Any], *, signals: Sequence[int] = (signal.SIGTERM, signal.SIGUSR1),
                  exit_code: int = SAVED) -> None:
    """At the first of `signals`: calls `save` once, in this process only, and ends with `exit_code`.

    Processes that are forked from this one (DataLoader workers) get the signals' default action instead: they end and
    save nothing. Must be called in the main thread. If `save` raises, the process ends with 1 and its traceback.
    """
    owner = os.getpid()
    begun = False

    # Python forgets, in a new child, what came between fork() and its own clean-up: so such a signal has to wait.
    masks = threading.local()

    def before_fork() -> None:
        masks.old = signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)

    def in_child() -> None:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)

    def handle(number: int, _: Any) -> None:
        nonlocal begun
        if os.getpid() != owner or begun:
            return
        begun = True
        # The rank goes down with os._exit: atexit functions of a backend may wait for peers that are gone.
        code = exit_code
        try:
            save()
        except BaseException:
            code = 1
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        os._exit(code)

    for number in signals:
        signal.signal(number, handle)
    os.register_at_fork(before=before_fork, after_in_parent=in_parent, after_in_child=in_child)


def record(function: _Function) -> _Function:
    """Writes an exception that leaves `function` into TORCHELASTIC_ERROR_FILE, in torch's form, and raises it on: it is
    the launcher's root cause then. torch's own @record does the same; this one needs no torch."""
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            write_error_file(error)
            raise

    return wrapper  # type: ignore[return-value]


def write_error_file(error: BaseException) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    content = {"message": {"message": f"{type(error).__name__}: {error}",
                           "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}}
    try:
        replace(path, json.dumps(content))
    except OSError as problem:
        print(f"ddprun: cannot write {path}: {problem}", file=sys.stderr)


_progress_warned = threading.Event()


def report_progress(step: int, **metrics: float) -> None:
    """Tells how far this rank is: Job.progress() and ddprun.elastic_launch's caller can read it. Cheap (one small file
    in the node's temporary folder), never raises, and does nothing under a launcher that does not ask for it."""
    folder = os.environ.get("DDPRUN_PROGRESS_DIR")
    if not folder:
        return
    try:
        values = {name: float(value) for name, value in metrics.items()}
        text = json.dumps({"step": int(step), "time": time.time(), **values})
        replace(os.path.join(folder, str(env().rank)), text)
    except (OSError, TypeError, ValueError) as problem:
        if not _progress_warned.is_set():
            _progress_warned.set()
            print(f"ddprun: report_progress: {problem}", file=sys.stderr)


def replace(path: str, text: str) -> None:
    replace_bytes(path, text.encode())


def replace_bytes(path: str, content: bytes) -> None:
    """All of it or nothing."""
    beside = f"{path}.{os.getpid()}.tmp"
    with open(beside, "wb") as file:
        file.write(content)
    os.replace(beside, path)
