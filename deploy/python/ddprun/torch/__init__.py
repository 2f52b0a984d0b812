"""ddprun behind torch's launcher, for programs that call it: accelerate launch, notebook_launcher, an IDE's
"module": "torch.distributed.run".

    import ddprun.torch; ddprun.torch.install()
    python -m ddprun.torch accelerate launch train.py
"""
from __future__ import annotations

import argparse
import sys
from typing import Any, Optional, Sequence

from ddprun._elastic import elastic_launch as _elastic_launch
from ddprun._elastic import launch as _launch

_NOT_OURS = ("help", "training_script", "training_script_args", "print_completion")


def _words(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    """A namespace of torch's parser as ddprun's words. What has its default is left out: ddprun has the same ones, and
    says itself what it makes of a PET_* variable."""
    out: list[str] = []
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if action.dest in _NOT_OURS or not names or not hasattr(args, action.dest):
            continue
        value = getattr(args, action.dest)
        if action.nargs == 0:
            out += [names[0]] if value else []
        elif value not in (None, "", []) and value != action.default:
            out.append(f"{names[0]}={','.join(value) if isinstance(value, (list, tuple)) else value}")
    return [*out, str(args.training_script), *map(str, args.training_script_args)]


def install() -> None:
    """Puts ddprun in the place of torch.distributed.run, .launch and .launcher.api in this process. Twice is once."""
    import torch.distributed.launch as old_launch
    import torch.distributed.launcher as launcher
    import torch.distributed.launcher.api as api
    import torch.distributed.run as run
    if getattr(run, "_ddprun", False):
        return
    parser = run.get_args_parser

    def run_main(args: Optional[Sequence[str]] = None) -> None:
        _launch(list(sys.argv[1:] if args is None else args))

    def run_run(args: argparse.Namespace) -> None:
        words = _words(args, parser())
        if hasattr(args, "use_env") and not args.use_env:  # torch.distributed.launch's parser made it
            _launch(words, called_as="ddprun-launch")
        else:
            _launch(words)

    def launch_main(args: Optional[Sequence[str]] = None) -> None:
        _launch(list(sys.argv[1:] if args is None else args), called_as="ddprun-launch")

    class elastic_launch(_elastic_launch):  # noqa: N801, torch's name
        """ddprun's, in torch's place."""

    def launch_agent(config: Any, entrypoint: Any, args: Sequence[Any], **_: Any) -> dict[int, Any]:
        return _elastic_launch(config, entrypoint)(*args)

    run.main, run.run = run_main, run_run
    old_launch.main, old_launch.launch, old_launch.run = launch_main, run_run, run_run
    for module in (api, launcher, run):
        module.elastic_launch = elastic_launch
    api.launch_agent = launch_agent
    run._ddprun = True


__all__ = ["install"]
