"""A function with its arguments on its way to the workers, and what they returned on its way back: files in a folder that
only this user can read."""
from __future__ import annotations

import os
import pickle
import re
import sys
from typing import Any, Callable

from ddprun._worker import replace_bytes


def _by_value(value: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        raise ValueError("this function cannot be imported by the workers (a notebook, a lambda, or one inside another "
                         "function): put it into a module, or install cloudpickle (pip install ddprun[notebook])"
                         ) from None
    return bytes(cloudpickle.dumps(value))


def write(path: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    main = sys.modules.get("__main__")
    has_script = getattr(main, "__spec__", None) is not None or bool(getattr(main, "__file__", None))
    if getattr(function, "__module__", None) == "__main__" and not has_script:
        body = _by_value((function, args))
    else:
        try:
            body = pickle.dumps((function, args))
        except (pickle.PicklingError, AttributeError, TypeError):
            body = _by_value((function, args))
    # As multiprocessing's "spawn": sys.path, the folder, and how to import this program's main module.
    from multiprocessing.spawn import get_preparation_data
    preparation = get_preparation_data("ddprun")
    del preparation["authkey"]  # for children that talk to us by multiprocessing
    with open(path, "xb") as file:
        pickle.dump((preparation, body), file)


def read(path: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    from multiprocessing.spawn import prepare
    with open(path, "rb") as file:
        preparation, body = pickle.load(file)
    prepare(preparation)
    function, args = pickle.loads(body)
    return function, args


def write_result(folder: str, rank: int, value: Any) -> None:
    try:
        body = pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        body = _by_value(value)
    # By round: what a rank of an earlier round returned does not count, and there may have been more ranks then.
    replace_bytes(os.path.join(folder, f"result-{os.environ.get('DDPRUN_ROUND', '0')}-{rank}"), body)


def read_results(folder: str) -> dict[int, Any]:
    found: dict[int, dict[int, str]] = {}
    for name in os.listdir(folder):
        match = re.fullmatch(r"result-(\d+)-(\d+)", name)
        if match:
            found.setdefault(int(match[1]), {})[int(match[2])] = os.path.join(folder, name)
    out = {}
    for rank, path in sorted(found[max(found)].items()) if found else []:
        with open(path, "rb") as file:
            out[rank] = pickle.load(file)
    return out
