"""The Debian packages in a bare Debian 12: installed, run, installed again while a job runs, purged."""
import glob
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

PACKAGES = pathlib.Path(os.environ["DDPRUN_PACKAGES"])
BASE = pathlib.Path(os.environ["DDPRUN_CHROOT"])
LIMIT = 120


def why_not():
    if os.geteuid() != 0:
        return "needs root for a chroot"
    if not BASE.is_dir():
        return "there is no chroot (debootstrap is missing, or had no network)"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return "this host allows no mount namespaces" if tried.returncode != 0 else ""


REASON = why_not()


@unittest.skipIf(REASON, REASON)
class Debian(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-debian-"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        subprocess.run(["cp", "-a", "--reflink=auto", f"{BASE}/.", self.root], check=True, timeout=LIMIT)
        for deb in glob.glob(str(PACKAGES / "*.deb")):
            shutil.copy(deb, self.root / "root")

    def command(self, text):
        # Namespaces of its own: what a test leaves behind ends with them.
        inside = f"mount -t proc proc /proc; {text}"
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", str(self.root), "/bin/bash", "-c", inside]

    def environment(self, **more):
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive",
                "OMP_NUM_THREADS": "1", **more}

    def sh(self, text, expected=0, **env):
        run = subprocess.run(self.command(text), capture_output=True, text=True, timeout=LIMIT, env=self.environment(**env), check=False)
        self.assertEqual(run.returncode, expected, f"{text}\n{run.stdout}\n{run.stderr}")
        return run

    def install(self, *names):
        self.sh("dpkg -i " + " ".join(f"/root/{name}_*.deb" for name in names))

    def files(self):
        return {str(path.relative_to(self.root)) for top in ("usr", "etc", "lib", "var/lib/private") if (self.root / top).exists()
                for path in (self.root / top).rglob("*") if not path.is_dir()}

    def test_ddprun_and_its_trainer(self):
        self.install("ddprun")
        self.assertIn("ddprun ", self.sh("ddprun --version").stdout)
        run = self.sh("ddprun --standalone --nproc-per-node=2 --no-python sh -c 'echo rank $RANK of $WORLD_SIZE'")
        self.assertEqual(sorted(run.stdout.splitlines()), ["rank 0 of 2", "rank 1 of 2"])
        self.assertIn("Usage: trainer", self.sh("ddprun --nproc-per-node=1 trainer --help").stdout)
        self.assertNotIn("trainer", os.listdir(self.root / "usr/bin"))
        self.assertIn("ddprun-launch", os.listdir(self.root / "usr/bin"))
        config = "/usr/share/doc/ddprun/examples/configs/fashion_mnist_mlp.yaml"
        run = self.sh(f"ddprun trainer --check --config {config} 2>&1 || true")
        self.assertNotIn("shared libraries", run.stdout)

    def test_says_what_numa_binding_lacks(self):
        self.install("ddprun")
        run = self.sh("ddprun --numa-binding=node --no-python true", expected=2)
        self.assertIn("libhwloc15", run.stderr)

    def test_docs_and_completions(self):
        self.install("ddprun", "ddprun-rendezvous")
        for path in ("usr/bin/ddpctl", "etc/ddprun/rendezvous.yaml", "lib/systemd/system/ddprun-rendezvous.service",
                     "usr/share/bash-completion/completions/ddprun", "usr/share/zsh/vendor-completions/_ddprun",
                     "usr/share/fish/vendor_completions.d/ddprun.fish"):
            self.assertTrue((self.root / path).exists(), path)
        listed = self.sh("dpkg -L ddprun ddprun-rendezvous").stdout
        for page in ("man1/ddprun.1.gz", "man1/ddprun-launch.1.gz", "man1/ddpctl.1.gz", "man8/ddprun-rendezvous.8.gz"):
            self.assertIn(page, listed)
        self.sh("set -e; . /usr/share/bash-completion/completions/ddprun; COMP_WORDS=(ddprun --nnod) COMP_CWORD=1; _ddprun; "
                "test \"${COMPREPLY[*]}\" = --nnodes")

    def test_the_daemon_as_its_unit_starts_it(self):
        self.install("ddprun-rendezvous")
        unit = (self.root / "lib/systemd/system/ddprun-rendezvous.service").read_text()
        command = re.search(r"^ExecStart=(.*)$", unit, re.M)[1].replace("%S", "/var/lib")
        self.assertIn("WatchdogSec=", unit)
        os.makedirs(self.root / "var/lib/ddprun-rendezvous", mode=0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(str(self.root / "run/notify"))
            systemd.settimeout(LIMIT)
            # No port of the host is taken: a network of its own.
            daemon = subprocess.Popen(["unshare", "--net", *self.command(f"ip link set lo up 2>/dev/null; echo $$; exec {command}")],
                                      env=self.environment(NOTIFY_SOCKET="/run/notify", WATCHDOG_USEC="400000"),
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                self.assertEqual(systemd.recv(100), b"READY=1")
                self.assertEqual([systemd.recv(100) for _ in range(3)], [b"WATCHDOG=1"] * 3)
                children = pathlib.Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
                os.kill(int(children[0]), signal.SIGHUP)
                said = systemd.recv(100)
                while said == b"WATCHDOG=1":
                    said = systemd.recv(100)
                self.assertEqual(said, b"STOPPING=1")
                _, errors = daemon.communicate(timeout=LIMIT)
            finally:
                daemon.kill()
                daemon.wait()
            self.assertEqual(daemon.returncode, 0, errors)

    def test_installed_again_while_a_job_runs(self):
        self.install("ddprun")
        work = self.root / "root/work"
        work.mkdir()
        (work / "worker.sh").write_text("echo $$ > /root/work/pid$RANK.$TORCHELASTIC_RESTART_COUNT\n"
                                        "while [ ! -e /root/work/stop ]; do\n"
                                        "  if [ -e /root/work/die ] && [ $RANK.$TORCHELASTIC_RESTART_COUNT = 1.0 ]; then kill -9 $$; fi\n"
                                        "  sleep 0.05\ndone\necho ended\n")
        job = subprocess.Popen(self.command("cd /root/work; ddprun --standalone --nproc-per-node=2 --max-restarts=1 --no-python "
                                            "bash worker.sh"),
                               env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def until(*names):
            end = time.monotonic() + LIMIT
            while not all((work / name).exists() and (work / name).read_text() for name in names):
                self.assertTrue(job.poll() is None and time.monotonic() < end, f"{names}: {job.poll()}")
                time.sleep(0.02)
        try:
            until("pid0.0", "pid1.0")
            self.install("ddprun")
            (work / "die").touch()
            until("pid0.1", "pid1.1")
            (work / "stop").touch()
            out, errors = job.communicate(timeout=LIMIT)
        finally:
            job.kill()
            job.wait()
        self.assertEqual((job.returncode, out.count("ended")), (0, 2), errors)

    def test_purge_leaves_nothing(self):
        before = self.files()
        self.install("ddprun", "ddprun-rendezvous")
        self.assertNotEqual(self.files(), before)
        os.makedirs(self.root / "var/lib/private/ddprun-rendezvous")
        (self.root / "var/lib/private/ddprun-rendezvous/state").touch()
        self.sh("dpkg --purge ddprun ddprun-rendezvous")
        self.assertEqual(self.files() - before, set())

