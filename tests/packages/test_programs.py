"""What the programs need of a host: glibc 2.34 and nothing else."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["DDPRUN_BUILD_DIR"])
ALONE = ("ddprun", "ddprun-rendezvous", "ddpctl")
GLIBC = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
NEWEST = (2, 34)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


class Programs(unittest.TestCase):
    def test_need_only_glibc(self):
        for name in ALONE:
            needed = set(re.findall(r"NEEDED\s+(\S+)", output("objdump", "-p", BUILD / name)))
            self.assertLessEqual(needed, GLIBC, name)
        needed = set(re.findall(r"NEEDED\s+(\S+)", output("objdump", "-p", BUILD / "trainer")))
        self.assertLessEqual(needed, GLIBC | {"libdnnl.so.2", "libgomp.so.1"}, "trainer")

    def test_run_with_glibc_of_2021(self):
        for name in (*ALONE, "trainer"):
            symbols = output("objdump", "-T", BUILD / name)
            newer = {version for version in re.findall(r"GLIBC_([0-9.]+)", symbols)
                     if tuple(map(int, version.split("."))) > NEWEST}
            self.assertEqual(newer, set(), f"{name}: {[line for line in symbols.splitlines() if any('GLIBC_' + v in line for v in newer)]}")
            self.assertNotIn("GLIBCXX", symbols, name)

    def test_load_nothing_from_the_current_directory(self):
        for name in (*ALONE, "trainer"):
            for path in re.findall(r"(?:RPATH|RUNPATH)\s+(\S*)", output("objdump", "-p", BUILD / name)):
                for part in path.split(":"):
                    self.assertTrue(part.startswith(("/", "$ORIGIN")), f"{name}: {path!r}")

    def test_versions_agree(self):
        text = (pathlib.Path(__file__).parents[2] / "CMakeLists.txt").read_text()
        version = re.search(r"project\(ddprun VERSION ([0-9.]+)", text)[1]
        for name in (*ALONE, "trainer"):
            self.assertIn(f"{name} {version}\n", output(BUILD / name, "--version"))

    def test_the_daemon_tells_systemds_watchdog_that_it_lives(self):
        with tempfile.TemporaryDirectory(prefix="ddprun-watchdog-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(folder + "/notify")
            systemd.settimeout(60)
            env = {**os.environ, "NOTIFY_SOCKET": folder + "/notify", "WATCHDOG_USEC": "100000"}
            daemon = subprocess.Popen([BUILD / "ddprun-rendezvous", "--port", "0"], env=env, stderr=subprocess.DEVNULL)
            try:
                self.assertEqual(systemd.recv(100), b"READY=1")
                self.assertEqual([systemd.recv(100) for _ in range(3)], [b"WATCHDOG=1"] * 3)
                daemon.send_signal(signal.SIGHUP)
                said = b"WATCHDOG=1"
                while said == b"WATCHDOG=1":
                    said = systemd.recv(100)
                self.assertEqual(said, b"STOPPING=1")
                self.assertEqual(daemon.wait(60), 0)
            finally:
                daemon.kill()
                daemon.wait()
