"""trainer_bench beside trainer_peer (PyTorch DDP over Gloo), turn about in the same minutes; prints a Markdown table.

    ~/.cache/ddprun-tests/bin/python tests/bench/worker/trainer_bench.py [--seconds 5] [--rounds 3] [--ranks 1,2] [model ...]

DDPRUN_BUILD_DIR: default build/release. Numbers of a busy machine mean little as wall time; `cpu` (processor time of one
rank's step) is nearly free of that. Best of all rounds for times, so compare ratios, never single numbers.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("DDPRUN_BUILD_DIR", HERE.parents[2] / "build" / "release")).resolve()
BATCH = {"mlp": 64, "resnet18": 8, "resnet18_32": 32, "gpt2": 8}


def run(who, model, ranks, seconds, *extra):
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHON_EXEC": sys.executable}
    program = [str(BUILD / "tests" / "trainer_bench")] if who == "ddprun" else [sys.executable,
                                                                               str(HERE / "trainer_peer.py")]
    if ranks > 1:
        launcher = [str(BUILD / "ddprun"), "--standalone", f"--nproc-per-node={ranks}"]
        program = launcher + (["--no-python"] if who == "ddprun" else []) + program[-1:]
    command = program + [model, str(BATCH[model]), str(seconds), *extra]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            return json.loads(line)
    raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("models", nargs="*", default=["mlp", "resnet18", "gpt2"])
    options = parser.parse_args()
    print("| model | ranks | samples/s ours | torch | ratio | cpu ratio | no overlap | peak MB ours | torch | ratio | "
          "start to first step s | torch | ratio | first step done s | torch | ratio |")
    print("|---" * 16 + "|")
    for model in options.models:
        for ranks in map(int, options.ranks.split(",")):
            ours, theirs, plain = [], [], []
            for _ in range(options.rounds):
                ours.append(run("ddprun", model, ranks, options.seconds))
                theirs.append(run("torch", model, ranks, options.seconds))
                if ranks > 1:
                    plain.append(run("ddprun", model, ranks, options.seconds, "overlap=0"))

            def best(runs, key):
                return max(r[key] for r in runs) if key.startswith("samples") else min(r[key] for r in runs)

            a, b = best(ours, "samples_per_s_best"), best(theirs, "samples_per_s_best")
            off = f"{best(plain, 'samples_per_s_best'):.1f}" if plain else "-"
            peak = best(ours, "peak_mb"), best(theirs, "peak_mb")
            ready = best(ours, "ready_s"), best(theirs, "ready_s")
            first = best(ours, "first_step_s"), best(theirs, "first_step_s")
            cpu = best(theirs, "cpu_ms") / best(ours, "cpu_ms")
            print(f"| {model} | {ranks} | {a:.1f} | {b:.1f} | {a / b:.2f} | {cpu:.2f} | {off} | {peak[0]:.0f} | "
                  f"{peak[1]:.0f} | {peak[0] / peak[1]:.2f} | {ready[0]:.2f} | {ready[1]:.2f} | "
                  f"{ready[0] / ready[1]:.3f} | {first[0]:.2f} | {first[1]:.2f} | "
                  f"{first[0] / first[1]:.3f} |", flush=True)


main()
