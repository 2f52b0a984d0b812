"""Where the programs of this installation lie."""
from __future__ import annotations

import os
import sys
import sysconfig


def program(name: str = "ddprun") -> str:
    """The path of ddprun, ddprun-rendezvous or ddpctl.

    DDPRUN_BIN names a folder that comes first: a build tree, or another version. Then the wheel's own, then PATH.
    Raises FileNotFoundError with the folders that were looked at.
    """
    folders = [os.environ["DDPRUN_BIN"]] if os.environ.get("DDPRUN_BIN") else []
    folders += [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    # pip install --user, --target and --prefix: bin/ is some levels above this package.
    here = os.path.dirname(os.path.abspath(__file__))
    for _ in range(5):
        here = os.path.dirname(here)
        folders.append(os.path.join(here, "bin"))
    folders += os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
    for folder in folders:
        path = os.path.join(folder, name)
        # Not a script of another package with this name, which might call us again.
        if os.access(path, os.X_OK) and not os.path.isdir(path) and _is_elf(path):
            return path
    raise FileNotFoundError(f"the program '{name}' is in none of {', '.join(dict.fromkeys(folders))}: "
                            "install the ddprun package for this host, or set DDPRUN_BIN to its folder")


def _is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Ours, with this interpreter for the workers unless PYTHON_EXEC names another."""
    out = dict(os.environ)
    out.setdefault("PYTHON_EXEC", sys.executable)
    out.update(extra or {})
    return out
