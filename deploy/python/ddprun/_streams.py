"""A child's output on its way to a Python stream: a notebook's cell, a test's capture."""
from __future__ import annotations

import codecs
import os
import threading
from typing import IO, Any, Optional


class Pump:
    def __init__(self, to: Any):
        self._to = to
        self._tail = ""
        self._thread: Optional[threading.Thread] = None

    def start(self, source: Optional[IO[bytes]]) -> None:
        assert source is not None
        self._thread = threading.Thread(target=self._run, args=(source,), name="ddprun-output", daemon=True)
        self._thread.start()

    def _run(self, source: IO[bytes]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            chunk = os.read(source.fileno(), 65536)
            text = decoder.decode(chunk, final=not chunk)
            self._tail = (self._tail + text)[-8192:]
            try:
                self._to.write(text)
                self._to.flush()
            except Exception:  # a stream of anybody's making
                pass  # the reader is gone; the job is not to stand still for that
            if not chunk:
                return

    def join(self) -> None:
        # Bounded: something that outlives the job may hold the pipe.
        if self._thread is not None:
            self._thread.join(5)

    @property
    def last_line(self) -> str:
        lines = self._tail.strip().splitlines()
        return lines[-1] if lines else ""
