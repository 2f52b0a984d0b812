#!/usr/bin/env python3
"""All-reduce of f32 on this host, side by side: ours (owned, foreign memory, TCP ring), the copy limit, torch's Gloo and
Open MPI. The kinds take turns in small portions, so that a noisy minute hits them all; the best and the median of all
rounds are kept. Ours and Open MPI's ranks are bound to a core each; Gloo, which has threads of its own, is not. Prints a
Markdown table.

  collective_bench.py [--build build/release] [--ranks 2,4,8] [--seconds 60] [--python PYTHON-WITH-TORCH]

Gloo needs torch in --python (default ${XDG_CACHE_HOME:-~/.cache}/ddprun-tests/bin/python); Open MPI needs mpicc and
mpirun. What is not there is left out, and said."""

import argparse
import collections
import os
import shutil
import subprocess
import sys
import tempfile
import time

SIZES = [4096, 65536, 1 << 20, 25 << 20, 256 << 20]
HERE = os.path.dirname(os.path.abspath(__file__))

GLOO = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=int(sys.argv[3]))
for pair in sys.argv[4:]:
    size, rounds = map(int, pair.split(":"))
    data = torch.zeros(size // 4)
    repeat = 20 if size < 65536 else 1
    times = []
    for i in range(-3, rounds):
        dist.barrier()
        before = time.perf_counter()
        for _ in range(repeat):
            dist.all_reduce(data)
        if i >= 0:
            times.append((time.perf_counter() - before) * 1e6 / repeat)
    times.sort()
    if dist.get_rank() == 0:
        print("gloo", dist.get_world_size(), size, "%.2f" % times[0], "%.2f" % times[len(times) // 2], flush=True)
dist.destroy_process_group()
"""


def rounds_for(size, ranks):
    most = (512 << 20) if ranks == 2 else (128 << 20)
    return max(3, min(100 if ranks == 2 else 20, most // size))


def lines(command, env=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, env=env)
    if done.returncode != 0:
        sys.exit("failed: %s" % " ".join(command))
    return [line.split() for line in done.stdout.splitlines() if len(line.split()) == 5]


def gloo(python, ranks):
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, GLOO_SOCKET_IFNAME="lo")
        command = [python, "-c", GLOO, os.path.join(folder, "store")]
        args = [str(ranks)] + ["%d:%d" % (size, rounds_for(size, ranks)) for size in SIZES]
        others = [subprocess.Popen(command + [str(r)] + args, env=env) for r in range(1, ranks)]
        try:
            result = lines(command + ["0"] + args, env)
        finally:
            for other in others:
                other.wait(timeout=60)
        return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--seconds", type=float, default=60)
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    parser.add_argument("--python", default=os.path.join(cache, "ddprun-tests/bin/python"))
    options = parser.parse_args()
    bench = os.path.join(options.build, "tests/collective_bench")
    has_gloo = os.path.exists(options.python)
    mpi = None
    if shutil.which("mpicc") and shutil.which("mpirun"):
        mpi = os.path.join(options.build, "tests/collective_bench_mpi")
        subprocess.run(["mpicc", "-O2", os.path.join(HERE, "collective_bench_mpi.c"), "-o", mpi], check=True)
    for there, what in ((has_gloo, "Gloo: no torch at " + options.python), (mpi, "Open MPI: no mpicc and mpirun")):
        if not there:
            print("left out, " + what, file=sys.stderr)

    best = collections.defaultdict(lambda: float("inf"))
    medians = collections.defaultdict(list)

    def note(rows):
        for name, ranks, size, low, median in rows:
            key = (name, int(ranks), int(size))
            best[key] = min(best[key], float(low))
            medians[key].append(float(median))

    worlds = [int(r) for r in options.ranks.split(",")]
    end = time.monotonic() + options.seconds
    turn = 0
    while turn == 0 or time.monotonic() < end:
        for ranks in worlds:
            for size in SIZES:
                rounds = str(rounds_for(size, ranks))
                for name in ("copy", "owned", "foreign", "tcp"):
                    note(lines([bench, name, str(ranks), rounds, str(size)]))
                if mpi:
                    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "core" if ranks <= os.cpu_count() else "none",
                               "--mca", "btl",
                               "self,vader", "--mca", "oob_tcp_if_include", "lo", "-np", str(ranks), mpi, rounds]
                    note(lines(command + [str(size)]))
            if has_gloo:  # all sizes in one go: starting Python takes longer than measuring
                note(gloo(options.python, ranks))
        turn += 1

    names = ["copy", "owned", "foreign", "tcp"] + (["mpi"] if mpi else []) + (["gloo"] if has_gloo else [])
    print("best (median) us of %d turns, f32 sum" % turn)
    print("| ranks | bytes | " + " | ".join(names) + " | copy/owned | gloo/owned | gloo/foreign | gloo/tcp |")
    print("|" + "---|" * (len(names) + 6))
    for ranks in worlds:
        for size in SIZES:
            cells = []
            for name in names:
                values = sorted(medians[(name, ranks, size)])
                cells.append("%.4g (%.4g)" % (best[(name, ranks, size)], values[len(values) // 2]))
            b = lambda name: best[(name, ranks, size)]
            ratios = ["%.2f" % (b("copy") / b("owned"))]
            ratios += ["%.1f" % (b("gloo") / b(n)) if has_gloo else "-" for n in ("owned", "foreign", "tcp")]
            print("| %d | %d | %s |" % (ranks, size, " | ".join(cells + ratios)))


if __name__ == "__main__":
    main()
