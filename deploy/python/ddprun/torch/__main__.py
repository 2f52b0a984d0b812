"""`python -m ddprun.torch PROGRAM ...`: a console script, a file, or `-m MODULE`, with ddprun behind torch's launcher."""
from __future__ import annotations

import importlib.metadata
import os
import runpy
import sys
from typing import Any, Iterable

from ddprun.torch import install


def _console_scripts() -> Iterable[Any]:
    if sys.version_info >= (3, 10):
        return importlib.metadata.entry_points(group="console_scripts")
    return importlib.metadata.entry_points().get("console_scripts", [])


def main() -> None:
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: {__doc__}" if words else "usage: python -m ddprun.torch PROGRAM [arguments]",
              file=sys.stdout if words else sys.stderr)
        sys.exit(0 if words else 2)
    install()
    # What the program starts by itself (python -m accelerate.commands.launch, torchrun's own children) is not covered.
    if words[0] == "-m":
        if len(words) < 2:
            sys.exit("ddprun.torch: -m needs a module")
        sys.argv = words[1:]
        if words[1] in ("torch.distributed.run", "torch.distributed.launch"):
            # runpy would load a second copy, with torch's own main.
            sys.exit(__import__(words[1], fromlist=["main"]).main())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    for entry in _console_scripts():
        if entry.name == os.path.basename(words[0]) and not words[0].endswith(".py"):
            sys.exit(entry.load()())
    if not os.path.isfile(words[0]):
        sys.exit(f"ddprun.torch: {words[0]} is neither a console script of this environment nor a file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
