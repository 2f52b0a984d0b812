"""One rank of elastic_launch(function): `python -m ddprun._call FOLDER`, started by ddprun."""
from __future__ import annotations

import os
import sys

from ddprun import _payload
from ddprun._worker import env, write_error_file


def main(folder: str) -> None:
    me = env()
    try:
        function, args = _payload.read(os.path.join(folder, "call"))
        _payload.write_result(folder, me.rank, function(*args))
    except Exception as error:
        write_error_file(error)
        raise


if __name__ == "__main__":
    main(sys.argv[1])
