"""`python -m ddprun ...` is `ddprun ...` with this interpreter for the workers."""
from __future__ import annotations

import os
import sys

from ddprun._programs import environment, program


def _become(called_as: str) -> None:
    try:
        path = program("ddprun")
    except FileNotFoundError as error:
        sys.exit(f"ddprun: {error}")
    os.execve(path, [called_as, *sys.argv[1:]], environment())


def main() -> None:
    _become("ddprun")


def launch() -> None:
    """ddprun-launch: the same program, which goes by its name."""
    _become("ddprun-launch")


if __name__ == "__main__":
    main()
