"""What the programs need of a host: glibc 2.34 and nothing else."""
import os
import pathlib
import re
import subprocess
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
