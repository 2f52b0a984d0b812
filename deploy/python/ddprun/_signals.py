"""Signals of a process whose job runs in a child: handed on, and raised again when the job has ended."""
from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import Any, Optional

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_GO_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Forwarding:
    """In the main thread only; elsewhere Python has no handlers, and the main thread's stay as they are."""

    def __init__(self) -> None:
        self._to: Optional["subprocess.Popen[Any]"] = None
        self._stopped_by: Optional[int] = None
        self._early: Optional[int] = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Forwarding":
        if threading.current_thread() is threading.main_thread():
            for number in (*_STOP, *_GO_ON):
                before = signal.getsignal(number)
                # nohup stays nohup; a handler that is not Python's cannot be put back.
                if before is not signal.SIG_IGN and before is not None:
                    self._before[number] = before
                    signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, _: Any) -> None:
        if number in _STOP:
            self._stopped_by = number
        if self._to is None:
            self._early = number if number in _STOP else self._early
        elif self._to.poll() is None:
            self._to.send_signal(number)

    def attach(self, process: "subprocess.Popen[Any]") -> None:
        """From here on signals go to `process`; a stop that came while it was started goes now, once."""
        self._to = process
        early, self._early = self._early, None
        if early is not None and process.poll() is None:
            process.send_signal(early)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def raise_again(self) -> None:
        number = self._stopped_by
        if number is None:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if "torch" in sys.modules:
            from torch.distributed.elastic.multiprocessing.api import SignalException
            raise SignalException(f"Process got signal: {signal.Signals(number).name}", signal.Signals(number))
        raise SystemExit(128 + number)
