"""The same command line under the real torchrun and under ddprun: exit status, worker environment, argv, log tree, console.

One line of CASES is one command. Differences are allowed only where launcher/README.md says "better", "new" or "refused",
and each of them is named here. torchrun costs about 3 s a command, so two cases run at a time, and every second case is
left out unless COMPAT_FULL=1 (nightly; DDPRUN_INTEROP_FULL=1 works too).
"""
import concurrent.futures
import json
import os
import pathlib
import re
import socket
import sys
import unittest

from support import InteropTest

WORKER = str(pathlib.Path(__file__).resolve().parent / "compat_worker.py")
FULL = os.environ.get("COMPAT_FULL") == "1" or os.environ.get("DDPRUN_INTEROP_FULL") == "1"


class Case:
    """options: before the script. args: after it. status: what ddprun ends with if not as torchrun (its own codes).
    known: environment variables whose difference the README explains."""

    def __init__(self, options, args=(), env=None, program="torchrun", script=WORKER, status=None, known=(), console=True,
                 workers=True):
        self.options, self.args, self.env, self.program = options.split(), list(args), env or {}, program
        self.script, self.status, self.known, self.console, self.workers = script, status, set(known), console, workers

    def __str__(self):
        variables = "".join(f"{k}={v} " for k, v in self.env.items())
        return f"{variables}{self.program} {' '.join(self.options)} {pathlib.Path(self.script).name} {' '.join(self.args)}"


CASES = [
    # how many and where
    Case(""),
    Case("--standalone"),
    Case("--standalone --nproc-per-node=3"),
    Case("--nproc_per_node=2"),
    Case("--nproc_per_node 2"),
    Case("--nproc-per-node=cpu"),
    Case("--nproc-per-node=auto"),
    Case("--nnodes=1 --nproc-per-node=2"),
    Case("--nnodes=1:1 --nproc-per-node=2"),
    Case("--nnodes=1 --nproc_per_node=2 --max_restarts=3 --rdzv_id=123456 --rdzv_backend=c10d --rdzv_endpoint=localhost:@PORT@"),
    Case("--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:@PORT@ --rdzv-id=job7", known=["MASTER_ADDR"]),
    Case("--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:@PORT@ --local-addr=127.0.0.1 --rdzv-conf=join_timeout=30"),
    Case("--master-port=@PORT@ --nproc-per-node=2"),
    Case("--master-addr=127.0.0.1 --master_port=@PORT@ --node_rank=0"),
    Case("--rdzv-endpoint=127.0.0.1:@PORT@"),
    Case("--rdzv-backend=static --rdzv-endpoint=127.0.0.1:@PORT@ --rdzv-id=s1"),
    # the worker's side
    Case("--standalone", ["a", "--b", "c d", "", "--nnodes", "9", "-m", "--", "-h"]),
    Case("--standalone", ["--", "a"]),
    Case("--standalone --nproc-per-node=2", ["--out=x${local_rank}.txt", "${local_rank}", "${RANK}"]),
    Case("--standalone --role=trainer --nproc-per-node=2"),
    Case("--standalone --max-restarts=4"),
    Case("--standalone -m", script="compat_worker"),
    Case("--standalone --module", ["a"], script="compat_worker"),
    Case("--standalone --run-path", ["a"]),
    Case("--standalone --no-python", ["-c", "exit 0"], script="sh", workers=False),
    Case("--standalone --no-python", ["-c", "echo $RANK-$WORLD_SIZE"], script="sh", workers=False),
    Case("--standalone --virtual-local-rank --nproc-per-node=2"),
    Case("--standalone --virtual-local-rank --nproc-per-node=2", env={"CUDA_VISIBLE_DEVICES": "4, 6"}),
    Case("--standalone --nproc-per-node=2", env={"CUDA_VISIBLE_DEVICES": "4,6"}),
    Case("--standalone --nproc-per-node=2", env={"OMP_NUM_THREADS": "3"}),
    Case("--standalone --nproc-per-node=2", env={"OMP_NUM_THREADS": "@UNSET@"}, known=["OMP_NUM_THREADS"]),
    Case("--standalone", env={"OMP_NUM_THREADS": "@UNSET@"}),
    Case("--standalone --nproc-per-node=2", env={"RANK": "7", "WORLD_SIZE": "99", "MASTER_ADDR": "no.such.host",
                                                "GROUP_RANK": "3", "MINE": "kept"}),
    Case("--standalone", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    Case("--standalone --signals-to-handle=SIGTERM,SIGUSR1"),
    # variables
    Case("", env={"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "3", "PET_ROLE": "r"}),
    Case("--nproc-per-node=1", env={"PET_NPROC_PER_NODE": "2"}),
    Case("", env={"PET_STANDALONE": "1", "PET_RUN_PATH": "1"}),
    Case("", env={"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:@PORT@", "PET_RDZV_ID": "j"}),
    Case("", env={"PET_NNODES": "2:1"}, status=2, workers=False),
    # abbreviations
    Case("--stand --nproc-per=2"),
    Case("--standalone --redirect=3 --log-d=@LOG@", ["say"]),
    # output
    Case("--standalone --log-dir=@LOG@ --redirects=3 --nproc-per-node=2", ["say"]),
    Case("--standalone --log-dir=@LOG@ --tee=3 --nproc-per-node=2", ["say"]),
    Case("--standalone --log-dir=@LOG@ -r 0:1,1:2 -t 1:1 --nproc-per-node=2", ["say"]),
    Case("--standalone --log-dir=@LOG@ --tee=1 --role=t", ["say"]),
    Case("--standalone --log-dir=@LOG@ --tee=3 --log-line-prefix-template=<${role_name}|${local_rank}|${rank}>", ["say"]),
    Case("--standalone --log-dir=@LOG@ --tee=3 --local-ranks-filter=1 --nproc-per-node=2", ["say"]),
    Case("--standalone --local-ranks-filter=0 --nproc-per-node=2", ["say"]),
    Case("--standalone --log-dir=@LOG@ --tee=3 --duplicate-stdout-filters=three --nproc-per-node=2", ["say"]),
    Case("--standalone --log-dir=/dev/null", ["say"]),
    Case("--standalone --log-dir=@LOG@"),
    Case("--standalone --nproc-per-node=2", ["say"]),
    # ends
    Case("--standalone --nproc-per-node=2", ["exit-1=3"], status=3),
    Case("--standalone --nproc-per-node=2", ["exit-0=0", "exit-1=9"], status=9),
    Case("--standalone", ["kill-0=SIGKILL"], status=137),
    Case("--standalone", ["kill-0=SIGSEGV"], status=139),
    Case("--standalone --max-restarts=2 --nproc-per-node=2", ["fail-once"]),
    Case("--standalone --max-restarts=1 --log-dir=@LOG@ --redirects=3 --nproc-per-node=2", ["fail-once", "say"]),
    Case("--standalone --max-restarts=1", ["exit"], status=3),
    # usage
    Case("--bogus", workers=False),
    Case("--nproc-per-node", workers=False),
    Case("--max-restarts=x", workers=False),
    Case("--standalone --numa-binding=moon", workers=False),
    Case("--nnodes=0", status=2, workers=False),
    Case("--nproc-per-node=many", status=2, workers=False),
    Case("--standalone --nproc-per-node=gpu", status=2, workers=False),
    Case("--rdzv-backend=nonsense --rdzv-endpoint=localhost:1", status=2, workers=False),
    Case("--standalone --redirects=7", status=2, workers=False),
    Case("--logs-specs=nonesuch", status=2, workers=False),
    Case("--standalone", script="no_such_script.py", status=127, workers=False),
    Case("--standalone --no-python", script="./no_such_program", status=127, workers=False),
    # the legacy program
    Case("--nproc_per_node=2", ["a"], program="launch"),
    Case("--nproc_per_node=2 --master_port=@PORT@", program="launch"),
    Case("--use-env --nproc-per-node=2", ["a"], program="launch"),
    Case("--no-python", ["-c", "exit"], script="sh", program="launch", status=2, workers=False),
]

# What only one of the two sets, and may: TORCHELASTIC_SIGNALS_TO_HANDLE leaks from torchrun's own environment.
OURS = re.compile(r"DDPRUN_|COMPAT_|_$|SHLVL$|PWD$|OLDPWD$|LC_CTYPE$")
PLACE = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "MASTER_ADDR"}  # judged one by one below


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Outcome:
    def __init__(self, run, folder):
        self.run, self.code = run, run.code
        self.workers = {}
        for path in sorted((folder / "out").iterdir()):
            self.workers[path.stem] = json.loads(path.read_text())
        logs = folder / "logs"
        self.tree = sorted(str(path.relative_to(logs)).partition("/")[2] for path in logs.rglob("*") if path.is_file()) \
            if logs.exists() else []
        self.texts = {str(path.relative_to(logs)).partition("/")[2]: sorted(path.read_bytes().splitlines())
                      for path in logs.rglob("*.log")} if logs.exists() else {}

    def console(self, stream):
        text = self.run.out if stream == "out" else self.run.err
        return sorted(line for line in text.splitlines() if re.search(rf"{stream} \d (one|two|three)$", line))


class Compat(InteropTest):
    def launch(self, case, which, folder):
        """Runs the case in a folder of its own under "torch" or "ddprun"."""
        (folder / "out").mkdir(parents=True)
        swap = {"@PORT@": str(free_port()), "@LOG@": str(folder / "logs")}

        def fill(text):
            for key, value in swap.items():
                text = text.replace(key, value)
            return text

        env = {k: fill(v) for k, v in case.env.items()}
        env |= {"COMPAT_OUT": str(folder / "out"), "PYTHONPATH": str(pathlib.Path(WORKER).parent), "TMPDIR": str(folder)}
        if which == "torch":
            module = "torch.distributed.run" if case.program == "torchrun" else "torch.distributed.launch"
            command = [sys.executable, "-m", module]
        else:
            command = ["ddprun" if case.program == "torchrun" else "ddprun-launch"]
        words = [fill(word) for word in case.options] + [case.script] + [fill(word) for word in case.args]
        unset = [k for k, v in env.items() if v == "@UNSET@"]
        if unset:
            path = command[0] if os.path.sep in command[0] else str(self.build_program(command[0]))
            command = ["/usr/bin/env", *[f"-u{name}" for name in unset], path, *command[1:]]
            env = {k: v for k, v in env.items() if v != "@UNSET@"}
        return Outcome(self.run_program(*command, *words, env=env), folder)

    def build_program(self, name):
        import support
        return support.BUILD_DIR / name

    def differences(self, case, torch, ours):
        """Sentences; empty when the two agree, apart from what is known."""
        found = []
        wanted = case.status if case.status is not None else torch.code
        if ours.code != wanted:
            found.append(f"exit status {ours.code}, wanted {wanted} (torchrun: {torch.code})")
        if case.status is not None and torch.code == 0:
            found.append("torchrun succeeds here: the case is wrong")
        if not case.workers:
            return found
        if sorted(torch.workers) != sorted(ours.workers):
            return found + [f"workers {sorted(ours.workers)}, torchrun has {sorted(torch.workers)}"]
        if not torch.workers:
            return found + ["no worker ran: the case is wrong"]
        for name, theirs in torch.workers.items():
            mine = ours.workers[name]
            run_path = "--run-path" in case.options or "PET_RUN_PATH" in case.env
            # better: a session of its own for every worker, with --run-path too
            for key in ("name", "cwd", "umask") if run_path else ("name", "cwd", "umask", "session_leader"):
                if theirs[key] != mine[key]:
                    found.append(f"worker {name}: {key} is {mine[key]!r}, torchrun has {theirs[key]!r}")
            if theirs["argv"] != mine["argv"]:
                found.append(f"worker {name}: argv {mine['argv']}, torchrun has {theirs['argv']}")
            if not run_path and theirs["unbuffered"] != mine["unbuffered"]:
                found.append(f"worker {name}: unbuffered is {mine['unbuffered']}")
            found += self.environment_differences(case, name, theirs["env"], mine["env"])
        if torch.tree != ours.tree:
            found.append(f"log tree {ours.tree}, torchrun has {torch.tree}")
        elif torch.texts != ours.texts:
            found.append(f"log texts {ours.texts}, torchrun has {torch.texts}")
        for stream in ("out", "err"):
            if torch.console(stream) != ours.console(stream):
                found.append(f"console {stream}: {ours.console(stream)}, torchrun has {torch.console(stream)}")
        return found

    def environment_differences(self, case, name, theirs, mine):
        found = []
        skip = case.known | PLACE
        if case.program == "torchrun" and ("--run-path" in case.options or "PET_RUN_PATH" in case.env):
            skip |= {"OMP_NUM_THREADS"}
        for key in sorted(set(theirs) | set(mine)):
            if key in skip or OURS.match(key) or key == "TMPDIR" or key.startswith("PET_"):
                continue
            if key.startswith("KINETO") or key in ("CUDA_MODULE_LOADING", "TORCHINDUCTOR_CACHE_DIR"):
                continue  # set inside torchrun's own interpreter by importing torch
            if theirs.get(key) != mine.get(key):
                found.append(f"worker {name}: {key}={mine.get(key)!r}, torchrun has {theirs.get(key)!r}")
        for key in PLACE:
            if (key in theirs) != (key in mine):
                found.append(f"worker {name}: {key} is {'set' if key in mine else 'not set'}")
        if not re.fullmatch(r"[0-9.]+|[0-9a-f:]+", mine.get("MASTER_ADDR", "")):
            found.append(f"worker {name}: MASTER_ADDR={mine.get('MASTER_ADDR')!r} is not numeric")
        if "@PORT@" in " ".join(case.options) and "c10d" not in " ".join(case.options):
            if theirs["MASTER_ADDR"] != mine["MASTER_ADDR"]:
                found.append(f"worker {name}: MASTER_ADDR={mine['MASTER_ADDR']!r}, torchrun has {theirs['MASTER_ADDR']!r}")
        if any("rdzv-id" in word or "rdzv_id" in word for word in case.options) or "PET_RDZV_ID" in case.env:
            if theirs["TORCHELASTIC_RUN_ID"] != mine["TORCHELASTIC_RUN_ID"]:
                found.append(f"worker {name}: TORCHELASTIC_RUN_ID={mine['TORCHELASTIC_RUN_ID']!r}")
        shape = re.compile(r"(attempt_\d+/\d+/error\.json)?$")
        if shape.search(theirs["TORCHELASTIC_ERROR_FILE"]).group() != shape.search(mine["TORCHELASTIC_ERROR_FILE"]).group():
            found.append(f"worker {name}: TORCHELASTIC_ERROR_FILE={mine['TORCHELASTIC_ERROR_FILE']!r}, "
                         f"torchrun has {theirs['TORCHELASTIC_ERROR_FILE']!r}")
        return found

    def test_same_command_same_effect(self):
        chosen = [(i, case) for i, case in enumerate(CASES) if FULL or i % 2 == 0 or os.environ.get("COMPAT_ONLY")]
        if only := os.environ.get("COMPAT_ONLY"):
            chosen = [(i, case) for i, case in chosen if only in str(case)]

        def both(entry):
            index, case = entry
            folder = self.dir / f"case{index}"
            torch = self.launch(case, "torch", folder / "torch")
            ours = self.launch(case, "ddprun", folder / "ddprun")
            return case, torch, ours, self.differences(case, torch, ours)

        bad = []
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for case, torch, ours, found in pool.map(both, chosen):
                if found:
                    bad.append(f"{case}\n  " + "\n  ".join(found) +
                               f"\n  ddprun's stderr ends: {ours.run.err[-300:]!r}\n  torchrun's: {torch.run.err[-300:]!r}")
        print(f"{len(chosen)} of {len(CASES)} command lines ", end="", flush=True)
        self.assertEqual(bad, [], f"{len(bad)} of {len(chosen)} differ:\n" + "\n".join(bad))


if __name__ == "__main__":
    unittest.main()
