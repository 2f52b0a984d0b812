"""The Python package (deploy/python/ddprun) with the programs of the build: functions on ranks, jobs as objects, torch's
launcher replaced, the pytest plug-in."""
import json
import os
import signal
import sys

from support import BUILD_DIR, HERE, InteropTest

PACKAGE = HERE.parent.parent / "deploy" / "python"


class PythonTest(InteropTest):
    def python(self, text, *arguments, limit=240, **env):
        path = text if text.endswith(".py") and "\n" not in text else self.write("program.py", text)
        return self.start(sys.executable, path, *arguments, env=self.env(**env)).wait(limit)

    def env(self, **more):
        return {"DDPRUN_BIN": BUILD_DIR, "PYTHONPATH": PACKAGE, **more}

    def make_folder(self, name):
        (self.dir / name).mkdir()
        return str(self.dir / name)


class PythonApi(PythonTest):
    def test_import_is_light(self):
        run = self.python("import sys, ddprun\n"
                          "heavy = {'torch', 'numpy', 'asyncio', 'importlib.metadata', 'multiprocessing'} & set(sys.modules)\n"
                          "assert not heavy, heavy\n")
        self.assertEqual(run.code, 0, run)

    def test_a_function_on_every_rank_gives_what_it_returned(self):
        run = self.python(
            "import ddprun\n"
            "def work(factor):\n"
            "    me = ddprun.env()\n"
            "    assert ddprun.is_launched() and me.world_size == 3\n"
            "    return me.rank * factor\n"
            "if __name__ == '__main__':\n"
            "    assert not ddprun.is_launched() and ddprun.env().world_size == 1\n"
            "    print(ddprun.elastic_launch(ddprun.LaunchConfig(nproc_per_node=3), work)(10))\n")
        self.assertEqual((run.code, run.out), (0, "{0: 0, 1: 10, 2: 20}\n"), run)

    def test_a_function_of_a_notebook_goes_by_value(self):
        cell = ("import ddprun\n"
                "base = 5\n"
                "def work(): return base + ddprun.env().rank\n"
                "print(ddprun.elastic_launch(ddprun.LaunchConfig(nproc_per_node=2), work)())\n")
        run = self.start(sys.executable, "-c", cell, env=self.env()).wait()
        self.assertEqual((run.code, run.out), (0, "{0: 5, 1: 6}\n"), run)

    def test_results_are_those_of_the_attempt_that_ended_well(self):
        run = self.python(
            "import os, time, ddprun\n"
            "def work(folder):\n"
            "    me = ddprun.env()\n"
            "    if me.restart_count == 0 and me.rank == 1:\n"
            "        while not os.listdir(folder): time.sleep(0.01)\n"  # rank 0 has returned
            "        os._exit(9)\n"
            "    if me.restart_count == 0: open(folder + '/returned', 'w').close()\n"
            "    return me.restart_count\n"
            "if __name__ == '__main__':\n"
            "    import sys\n"
            "    print(ddprun.elastic_launch(ddprun.LaunchConfig(nproc_per_node=2, max_restarts=1), work)(sys.argv[1]))\n",
            self.make_folder("flags"))
        self.assertEqual((run.code, run.out), (0, "{0: 1, 1: 1}\n"), run)

    def test_a_failure_is_torchs_error_with_the_workers_own_traceback(self):
        run = self.python(
            "import ddprun, torch, time\n"
            "from torch.distributed.elastic.multiprocessing.errors import ChildFailedError\n"
            "def work():\n"
            "    if ddprun.env().rank == 1: raise ValueError('the seventh batch is bad')\n"
            "    time.sleep(60)\n"
            "if __name__ == '__main__':\n"
            "    try:\n"
            "        ddprun.elastic_launch(ddprun.LaunchConfig(nproc_per_node=2, max_restarts=0), work)()\n"
            "    except ChildFailedError as error:\n"
            "        assert isinstance(error, ddprun.WorkersFailed)\n"
            "        rank, failure = error.get_first_failure()\n"
            "        print(rank, failure.exitcode, 'the seventh batch is bad' in str(error), error.name)\n")
        self.assertEqual((run.code, run.out), (0, "1 1 True work\n"), run)

    def test_a_signal_death_carries_number_and_last_lines(self):
        run = self.python(
            "import ddprun, os, torch, time\n"
            "def work():\n"
            "    print('last words of', ddprun.env().rank, flush=True)\n"
            "    if ddprun.env().rank == 0: os.kill(os.getpid(), 9)\n"
            "    time.sleep(60)\n"
            "if __name__ == '__main__':\n"
            "    try:\n"
            "        ddprun.elastic_launch(ddprun.LaunchConfig(nproc_per_node=2, max_restarts=0), work)()\n"
            "    except ddprun.WorkersFailed as error:\n"
            "        rank, failure = error.get_first_failure()\n"
            "        print(rank, failure.exitcode, failure.signal_name(), error.report.exit_code)\n")
        self.assertEqual((run.code, run.out.splitlines()[-1]), (0, "0 -9 SIGKILL 137"), run)

    def test_bad_arguments_are_a_value_error(self):
        run = self.python("import ddprun\n"
                          "try: ddprun.elastic_launch(ddprun.LaunchConfig(nproc_per_node='many'), 'true')()\n"
                          "except ValueError as error: print(error)\n")
        self.assertEqual(run.code, 0, run)
        self.assertIn("--nproc-per-node", run.out)

    def test_a_job_is_an_object(self):
        script = self.write("wait.py", "import ddprun, signal, time, sys\n"
                                       "ddprun.report_progress(12, loss=0.25)\n"
                                       "ddprun.on_preemption(lambda: print('saved it', flush=True))\n"
                                       "print('ready', flush=True)\n"
                                       "while True: time.sleep(0.05)\n")
        run = self.python(
            "import ddprun, sys, time\n"
            "job = ddprun.Job('--nproc-per-node=2', sys.argv[1], capture=True).start()\n"
            "end = time.monotonic() + 60\n"
            "while job.output.count('ready') < 2 and time.monotonic() < end: time.sleep(0.02)\n"
            "print({rank: (said['step'], said['loss']) for rank, said in job.progress().items()}, job.running)\n"
            "report = job.stop()\n"
            "print(report.exit_code, report.success, job.output.count('saved it'), job.running)\n", script)
        self.assertEqual((run.code, run.out),
                         (0, "{0: (12, 0.25), 1: (12, 0.25)} True\n75 False 2 False\n"), run)

    def test_run_gives_a_report(self):
        run = self.python("import ddprun\n"
                          "words = ['--nproc-per-node=2', '--no-python', 'sh', '-c', 'echo so it ends; exit 7']\n"
                          "report = ddprun.run(words, capture=True)\n"
                          "print(report.exit_code, report.root_cause.exit_code, report.root_cause.last_lines)\n"
                          "try: ddprun.run(words, check=True, capture=True)\n"
                          "except ddprun.JobFailed as error: print(error.report.exit_code)\n")
        self.assertEqual((run.code, run.out), (0, "7 7 ['so it ends']\n7\n"), run)

    def test_a_report_of_the_callers_own_is_read_too(self):
        run = self.python("import ddprun, sys\n"
                          "words = ['--no-python', 'sh', '-c', 'exit 7']\n"
                          "for flag in (['--report=' + sys.argv[1]], ['--report', sys.argv[1]]):\n"
                          "    print(ddprun.run([*flag, *words], capture=True).root_cause.exit_code)\n"
                          "report = ddprun.run(['--no-such-flag', '--report=' + sys.argv[1], *words], capture=True)\n"
                          "print(report.exit_code, report.root_cause)\n", self.dir / "report.json")
        self.assertEqual((run.code, run.out), (0, "7\n7\n2 None\n"), run)

    def test_a_stop_signal_reaches_the_workers_and_ends_the_caller(self):
        running = self.start(sys.executable, self.write("caller.py", (
            "import ddprun, time, sys\n"
            "def work(folder):\n"
            "    ddprun.on_preemption(lambda: open(f'{folder}/saved{ddprun.env().rank}', 'w').close())\n"
            "    open(f'{folder}/ready{ddprun.env().rank}', 'w').close()\n"
            "    time.sleep(600)\n"
            "if __name__ == '__main__':\n"
            "    ddprun.elastic_launch(ddprun.LaunchConfig(nproc_per_node=2), work)(sys.argv[1])\n")),
            self.make_folder("state"), env=self.env())
        state = self.dir / "state"
        self.wait_until(lambda: len(list(state.glob("ready*"))) == 2, "both workers run")
        running.signal(signal.SIGTERM)
        run = running.wait()
        self.assertEqual(run.code, 143, run)
        self.assertEqual(len(list(state.glob("saved*"))), 2, run)

    def test_a_stop_that_comes_while_the_job_is_started_reaches_it(self):
        run = self.python("import os, signal, subprocess\n"
                          "from ddprun._signals import Forwarding\n"
                          "with Forwarding() as signals:\n"
                          "    os.kill(os.getpid(), signal.SIGTERM)\n"
                          "    job = subprocess.Popen(['sleep', '600'])\n"
                          "    signals.attach(job)\n"
                          "    print(job.wait(60))\n")
        self.assertEqual((run.code, run.out), (0, "-15\n"), run)

    def test_a_stream_that_fails_does_not_hold_up_the_job(self):
        run = self.python("import subprocess\n"
                          "from ddprun._streams import Pump\n"
                          "class Broken:\n"
                          "    def write(self, text): raise RuntimeError('this cell is closed')\n"
                          "job = subprocess.Popen(['head', '-c', '1000000', '/dev/zero'], stdout=subprocess.PIPE)\n"
                          "Pump(Broken()).start(job.stdout)\n"
                          "print(job.wait(60))\n")
        self.assertEqual((run.code, run.out), (0, "0\n"), run)

    def test_preemption_saves_once_and_not_in_forked_children(self):
        script = self.write("forks.py", (
            "import os, sys, time, signal, ddprun\n"
            "ddprun.on_preemption(lambda: open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'))\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    time.sleep(600)\n"
            "print(child, flush=True)\n"
            "os.kill(child, signal.SIGTERM)\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -15\n"
            "print('waiting', flush=True)\n"
            "while True: time.sleep(0.05)\n"))
        saved = self.dir / "saved"
        running = self.start(sys.executable, script, saved, env=self.env())
        self.wait_until(lambda: "waiting" in running.out, "the child has ended")
        running.signal(signal.SIGUSR1)
        running.signal(signal.SIGTERM)
        self.assertEqual(running.wait().code, 75)
        self.assertEqual(saved.read_text(), f"{running.pid}\n")

    def test_record_without_torch(self):
        run = self.python("import ddprun, sys\n"
                          "@ddprun.record\n"
                          "def main(): raise KeyError('lr')\n"
                          "try: main()\n"
                          "except KeyError: print('torch' in sys.modules)\n",
                          TORCHELASTIC_ERROR_FILE=self.dir / "error.json")
        self.assertEqual((run.code, run.out), (0, "False\n"), run)
        content = json.loads((self.dir / "error.json").read_text())
        self.assertEqual(content["message"]["message"], "KeyError: 'lr'")
        self.assertIn("in main", content["message"]["extraInfo"]["py_callstack"])

    def test_module_uses_this_interpreter(self):
        script = self.write("which.py", "import sys; print(sys.executable)\n")
        env = self.env()
        running = self.start("/usr/bin/env", "-u", "PYTHON_EXEC", sys.executable, "-m", "ddprun", script, env=env)
        run = running.wait()
        self.assertEqual((run.code, run.out.strip()), (0, sys.executable), run)

    def test_no_program_is_one_clear_line(self):
        run = self.start(sys.executable, "-m", "ddprun", "x.py",
                         env={"PYTHONPATH": PACKAGE, "DDPRUN_BIN": "/nowhere", "PATH": "/nowhere"}).wait()
        self.assertEqual((run.code, run.err.count("\n")), (1, 1), run)
        self.assertIn("DDPRUN_BIN", run.err)


class BehindTorch(PythonTest):
    """python -m ddprun.torch, and install()."""

    TRAIN = HERE / "scripts" / "ddp_train.py"

    def test_torch_distributed_run_is_ours(self):
        out = self.make_folder("out")
        run = self.start(sys.executable, "-m", "ddprun.torch", "-m", "torch.distributed.run", "--standalone",
                         "--nproc-per-node=2", self.TRAIN, out, env=self.env()).wait()
        self.assertEqual(run.code, 0, run)
        self.assertIn("ddprun rendezvous complete", run.err)
        self.assertEqual(len(os.listdir(out)), 2, run)

    def test_callers_of_run_and_elastic_launch(self):
        run = self.python(
            "import sys, ddprun.torch\n"
            "ddprun.torch.install(); ddprun.torch.install()\n"
            "import torch.distributed.run as run\n"
            "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
            "def work(x): return x + 1\n"
            "if __name__ == '__main__':\n"
            "    args = run.get_args_parser().parse_args(['--nproc-per-node=2', '--no-python', 'sh', '-c', 'echo $RANK-of-$WORLD_SIZE'])\n"
            "    run.run(args)\n"
            "    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend='c10d',\n"
            "                          rdzv_endpoint='localhost:0', max_restarts=0)\n"
            "    print(elastic_launch(config, work)(1))\n")
        self.assertEqual(run.code, 0, run)
        self.assertEqual(sorted(run.out.splitlines()), ["0-of-2", "1-of-2", "{0: 2, 1: 2}"], run)

    def test_an_ide_that_runs_the_module(self):
        run = self.start(sys.executable, "-m", "ddprun.torch", "-m", "torch.distributed.launch", "--nproc_per_node=2",
                         self.write("old.py", "import sys; print(sys.argv[1:])\n"), env=self.env()).wait()
        self.assertEqual((run.code, sorted(run.out.splitlines())),
                         (0, ["['--local-rank=0']", "['--local-rank=1']"]), run)

    def test_a_program_that_is_not_there(self):
        run = self.start(sys.executable, "-m", "ddprun.torch", "no-such-program", env=self.env()).wait()
        self.assertEqual(run.code, 1, run)
        self.assertIn("neither a console script of this environment nor a file", run.err)


class PytestPlugin(PythonTest):
    def test_a_test_on_ranks(self):
        self.write("test_ranks.py", (
            "import pytest, ddprun\n"
            "@pytest.mark.ranks([1, 2])\n"
            "def test_sum(rank, world_size):\n"
            "    import torch, torch.distributed as dist\n"
            "    dist.init_process_group('gloo')\n"
            "    value = torch.tensor([rank + 1.0])\n"
            "    dist.all_reduce(value)\n"
            "    assert value.item() == sum(range(1, world_size + 1))\n"
            "    dist.barrier(); dist.destroy_process_group()\n"
            "@pytest.mark.ranks(2)\n"
            "def test_one_rank_fails(rank):\n"
            "    assert rank == 0, 'rank one is not happy'\n"
            "@pytest.mark.ranks(2)\n"
            "def test_skips(): pytest.skip('not here')\n"
            "@pytest.mark.ranks(1)\n"
            "def test_skips_alone(): pytest.skip('nor here')\n"
            "def test_plain(): pass\n"))
        run = self.start(sys.executable, "-m", "pytest", "-q", "-p", "ddprun.pytest_plugin", "-p", "no:cacheprovider",
                         "test_ranks.py", env=self.env()).wait()
        self.assertEqual(run.code, 1, run)
        self.assertIn("1 failed, 2 passed, 2 skipped", run.out, run)
        self.assertIn("rank one is not happy", run.out)


