"""The wheel as pip installs it: into a venv that nobody activates."""
import glob
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import zipfile

PACKAGES = pathlib.Path(os.environ["DDPRUN_PACKAGES"])
TOOLS = pathlib.Path(os.environ["DDPRUN_PACKAGE_TOOLS"])
TORCH = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "ddprun-tests"
LIMIT = 120
FOREIGN = ("PET_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "DDPRUN_", "SLURM_",
           "PYTHON", "VIRTUAL_ENV", "CONDA")


def wheel():
    found = glob.glob(str(PACKAGES / "ddprun-*.whl"))
    assert len(found) == 1, found
    return pathlib.Path(found[0])


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-wheel-"))
        cls.addClassCleanup(shutil.rmtree, cls.dir, ignore_errors=True)
        # The interop venv's own interpreter, so that torch can be lent from it.
        python = TORCH / "bin/python" if (TORCH / "bin/python").exists() else sys.executable
        subprocess.run([python, "-m", "venv", cls.dir / "venv"], check=True, timeout=LIMIT)
        cls.bin = cls.dir / "venv/bin"
        subprocess.run([cls.bin / "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel()], check=True,
                       timeout=LIMIT)

    def environment(self, **more):
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return {**env, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **more}

    def run_here(self, *command, **env):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT, check=False,
                              cwd=self.dir, env=self.environment(**env))

    def write(self, name, text):
        (self.dir / name).write_text(text)
        return self.dir / name

    def test_tag_size_and_what_is_in_it(self):
        self.assertRegex(wheel().name, r"^ddprun-[0-9.]+-py3-none-manylinux_2_34_x86_64\.whl$")
        self.assertLess(wheel().stat().st_size, 25 << 20)  # OpenSSL is in three of the programs
        names = zipfile.ZipFile(wheel()).namelist()
        for wanted in ("ddprun/py.typed", "ddprun/torch/__main__.py"):
            self.assertIn(wanted, names)
        self.assertTrue(any(name.endswith("data/libexec/ddprun/lib/libdnnl.so.2") for name in names), names)
        self.assertFalse(any("/etc/" in name or "systemd" in name for name in names), names)

    def test_keeps_what_its_tag_says(self):
        shown = subprocess.run([TOOLS / "bin/auditwheel", "show", wheel()], capture_output=True, text=True, timeout=LIMIT, check=False)
        with zipfile.ZipFile(wheel()) as file:
            file.extractall(self.dir / "unpacked")
        newest = (0,)
        for path in (self.dir / "unpacked").rglob("*"):
            if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
                symbols = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, timeout=60, check=True).stdout
                newest = max([newest, *(tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", symbols))])
        self.assertLessEqual(newest, (2, 34), shown.stdout + shown.stderr)

    def test_python_of_the_venv_though_it_is_not_active(self):
        script = self.write("which.py", "import sys, ddprun; print(sys.prefix)\n")
        for command in ([self.bin / "ddprun"], [self.bin / "python", "-m", "ddprun"]):
            run = self.run_here(*command, "--nproc-per-node=2", script)
            self.assertEqual((run.returncode, run.stdout), (0, f"{self.dir / 'venv'}\n" * 2), run.stderr)

    def test_old_launcher_hands_over_local_rank(self):
        run = self.run_here(self.bin / "ddprun-launch", "--nproc_per_node=1", self.write("old.py", "import sys; print(sys.argv[1:], sys.prefix)\n"))
        self.assertEqual((run.returncode, run.stdout), (0, f"['--local-rank=0'] {self.dir / 'venv'}\n"), run.stderr)

    def test_the_program_itself_is_the_script(self):
        for name in ("ddprun", "ddprun-rendezvous", "ddpctl"):
            self.assertEqual((self.bin / name).read_bytes()[:4], b"\x7fELF", name)
        self.assertFalse((self.bin / "trainer").exists(), "a generic name in everybody's PATH")

    def test_trains_on_a_host_without_onednn(self):
        libexec = self.dir / "venv/libexec/ddprun"
        self.assertTrue(os.access(libexec / "trainer", os.X_OK))
        loaded = self.run_here("ldd", libexec / "trainer")
        for line in loaded.stdout.splitlines():
            if "dnnl" in line or "gomp" in line or "OpenCL" in line:
                self.assertIn(str(libexec / "lib"), line)
        self.assertNotIn("not found", loaded.stdout)
        config = self.write("train.yaml", "model: {name: mlp, hidden: [8], classes: 3}\n"
                            "data: {format: synthetic, samples: 64, sample_shape: [4], batch_size: 8}\n"
                            "loss: cross_entropy\noptimizer: {name: sgd, lr: 0.05}\ntrain: {epochs: 1}\n")
        run = self.run_here(self.bin / "ddprun", "--standalone", "--nproc-per-node=2", "trainer", "--config", config)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("finished after step 4", run.stdout)

    def test_gpu_backend_finds_pips_libraries(self):
        backend = self.dir / "venv/libexec/ddprun/libddprun_cuda.so"
        if not backend.exists():
            self.skipTest("this wheel was built without CUDA")
        packages = glob.glob(str(TORCH / "lib/python3*/site-packages/nvidia"))
        if not packages:
            self.skipTest("pip's NVIDIA libraries are not installed (tests/interop/run.sh does that)")
        own = pathlib.Path(glob.glob(str(self.dir / "venv/lib/python3*/site-packages"))[0])
        (own / "nvidia").symlink_to(packages[0])
        loaded = self.run_here("ldd", backend).stdout
        self.assertNotIn("not found", loaded)
        for name in ("libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2", "libcudart.so.13"):
            self.assertRegex(loaded, f"{name.replace('.', '[.]')} => {re.escape(str(self.dir))}/venv/")

    def test_uninstall_leaves_nothing(self):
        other = self.dir / "other"
        subprocess.run([sys.executable, "-m", "venv", other], check=True, timeout=LIMIT)
        before = {str(path) for path in other.rglob("*")}
        pip = [other / "bin/pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", "--no-index", wheel()], check=True, timeout=LIMIT)
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", "ddprun"], check=True, timeout=LIMIT)
        left = {str(path) for path in other.rglob("*") if path.is_file()} - before
        self.assertEqual(left, set())

    def test_sdist_holds_what_the_build_needs(self):
        found = glob.glob(str(PACKAGES / "ddprun-*.tar.gz"))
        self.assertEqual(len(found), 1, found)
        with tarfile.open(found[0]) as file:
            names = {name.partition("/")[2] for name in file.getnames()}
        tree = pathlib.Path(__file__).parents[2]
        tracked = subprocess.run(["git", "-C", tree, "ls-files", "CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md",
                                  "client", "cmake", "common", "launcher", "rendezvous", "worker", "deploy"],
                                 capture_output=True, text=True, timeout=60, check=True).stdout.split()
        self.assertEqual(set(tracked) - names, set())

    def test_a_torch_script_survives_a_kill(self):
        packages = glob.glob(str(TORCH / "lib/python3*/site-packages"))
        if not packages:
            self.skipTest("torch is not installed (tests/interop/run.sh does that)")
        own = glob.glob(str(self.dir / "venv/lib/python3*/site-packages"))[0]
        pathlib.Path(own, "torch-from-interop.pth").write_text(packages[0] + "\n")
        script = self.write("train.py", (
            "import os, pathlib, time, torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\n"
            "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
            "    dist.barrier()\n"
            "    pathlib.Path('pid' + os.environ['RANK']).write_text(str(os.getpid()))\n"
            "    time.sleep(600)\n"
            "model(torch.ones(2, 4)).sum().backward()\n"
            "dist.barrier(); dist.destroy_process_group()\n"
            "print('trained', flush=True)\n"))
        job = subprocess.Popen([self.bin / "ddprun", "--standalone", "--nproc-per-node=2", "--max-restarts=1", script], cwd=self.dir,
                               env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            pid = self.dir / "pid1"
            end = time.monotonic() + LIMIT
            while not (pid.exists() and pid.read_text()) and job.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            os.kill(int(pid.read_text()), signal.SIGKILL)
            out, err = job.communicate(timeout=LIMIT)
        finally:
            job.kill()
            job.wait()
        self.assertEqual((job.returncode, out.count("trained")), (0, 2), err)
