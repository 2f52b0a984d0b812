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
for word in words:
    if word == f"exit={rank}" or word == "exit":
        sys.exit(3)
    if word.startswith(f"exit-{rank}="):
        sys.exit(int(word.partition("=")[2]))
    if word.startswith(f"kill-{rank}="):
        os.kill(os.getpid(), getattr(signal, word.partition("=")[2]))
    if word == "fail-once" and attempt == "0":  # the last rank fails when all have said what they got
        last = int(os.environ["WORLD_SIZE"]) - 1
        while rank == str(last) and len(os.listdir(directory)) <= last:
            time.sleep(0.01)
        if rank == str(last):
            sys.exit(5)
        time.sleep(600)
