"""Runs test_*.py of this folder as the interop runner does its own."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import runner  # noqa: E402

runner.HERE = HERE
sys.path.insert(0, str(HERE))
sys.exit(runner.main(sys.argv[1:]))
