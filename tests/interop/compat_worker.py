"""The worker of test_compat.py: writes what it was given into DIR/<rank>.<attempt>.json, then does what it is told.

compat_worker.py DIR [exit=N] [exit-RANK=N] [kill-RANK=SIG] [fail-once] [say] [anything ...]
"""
import json
import os
import signal
import sys
import time

directory, words = os.path.dirname(os.environ["COMPAT_OUT"] + "/"), sys.argv[1:]
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"{directory}/{rank}.{attempt}.json", "w") as out:
    json.dump({"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "name": __name__,
               "unbuffered": not sys.stdout.line_buffering and sys.stdout.write_through,
               "session_leader": os.getsid(0) == os.getpid(), "umask": os.umask(0o22)}, out)
if "say" in words:
    # One write a line: print() makes two, and without --tee nobody keeps the lines of two ranks apart.
    sys.stdout.write(f"out {rank} one\n")
    sys.stderr.write(f"err {rank} two\n")
    sys.stdout.write(f"out {rank} three\n")


def wait_for_the_others():
    """A launcher that is quick ends them before they have said what they got."""
    end = time.monotonic() + 30
    while time.monotonic() < end and len([f for f in os.listdir(directory) if f.endswith(f".{attempt}.json")]) < int(
            os.environ["WORLD_SIZE"]):
        time.sleep(0.01)


for word in words:
    if word == f"exit={rank}" or word == "exit":
        sys.exit(3)
    if word.startswith(f"exit-{rank}="):
        wait_for_the_others()
        sys.exit(int(word.partition("=")[2]))
    if word.startswith(f"kill-{rank}="):
        wait_for_the_others()
        os.kill(os.getpid(), getattr(signal, word.partition("=")[2]))
    if word == "fail-once" and attempt == "0":  # the last rank fails when all have said what they got
        if rank == str(int(os.environ["WORLD_SIZE"]) - 1):
            wait_for_the_others()
            sys.exit(5)
        time.sleep(600)
