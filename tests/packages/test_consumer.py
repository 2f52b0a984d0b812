"""The store client for programs of others: the package's files alone are enough to compile, link and meet."""
import glob
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

PACKAGES = pathlib.Path(os.environ["DDPRUN_PACKAGES"])
BUILD = pathlib.Path(os.environ["DDPRUN_BUILD_DIR"])
LIMIT = 120


class Consumer(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-consumer-"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        for deb in glob.glob(str(PACKAGES / "ddprun-dev_*.deb")):
            self.do("dpkg-deb", "-x", deb, self.root)
        self.library = next(self.root.rglob("libddprun-store.so.0")).parent
        self.example = self.root / "usr/share/doc/ddprun-dev/examples/example.c"

    def do(self, *command, **env):
        run = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT, check=False,
                             cwd=self.root, env={**os.environ, **env})
        self.assertEqual(run.returncode, 0, f"{command}\n{run.stdout}\n{run.stderr}")
        return run

    def meets(self, program):
        run = self.do(BUILD / "ddprun", "--standalone", "--nproc-per-node=3", "--no-python", program, LD_LIBRARY_PATH=str(self.library))
        self.assertEqual(run.stdout.splitlines(), [f"rank {rank} of 3" for rank in range(3)])

    def test_pkg_config(self):
        if not shutil.which("pkg-config"):
            self.skipTest("pkg-config is not installed")
        flags = self.do("pkg-config", "--cflags", "--libs", "ddprun-store", PKG_CONFIG_PATH=str(self.library / "pkgconfig"),
                        PKG_CONFIG_SYSROOT_DIR=str(self.root)).stdout.split()
        self.do("cc", "-Wall", "-Wextra", "-Werror", "-std=c99", "-D_POSIX_C_SOURCE=200809L", self.example, *flags, "-o", "hello")
        self.meets(self.root / "hello")

    def test_cmake(self):
        source = self.root / "source"
        source.mkdir()
        shutil.copy(self.example, source / "example.c")
        (source / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.20)\nproject(consumer C)\nfind_package(ddprun 0.1 REQUIRED)\n"
                                               "add_executable(hello example.c)\ntarget_link_libraries(hello PRIVATE ddprun::store)\n")
        self.do("cmake", "-S", source, "-B", self.root / "build", f"-DCMAKE_PREFIX_PATH={self.root}/usr")
        self.do("cmake", "--build", self.root / "build")
        self.meets(self.root / "build/hello")

    def test_needs_only_libc_and_exports_only_itself(self):
        library = self.library / "libddprun-store.so.0"
        needed = [line.split()[1] for line in self.do("objdump", "-p", library).stdout.splitlines() if "NEEDED" in line]
        self.assertLessEqual(set(needed), {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"})
        names = {line.split()[-1] for line in self.do("nm", "-D", "--defined-only", library).stdout.splitlines()}
        self.assertTrue({name.split("@")[0] for name in names} >= {"ddprun_store_connect", "ddprun_store_wait"})
        self.assertEqual({name for name in names if not name.startswith(("ddprun_store_", "DDPRUN_STORE_"))}, set())

    def test_errors_are_codes_and_sentences(self):
        (self.root / "errors.c").write_text(r'''
#include <ddprun_store.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  char error[256] = "";
  ddprun_store* store = (ddprun_store*)1;
  /* Nobody listens at port 1. */
  printf("%d ", ddprun_store_connect("127.0.0.1", 1, 50, &store, error, sizeof error));
  printf("%d %d\n", store == NULL, strlen(error) > 0);
  if (ddprun_store_connect(NULL, 0, 30000, &store, error, sizeof error)) return puts(error), 1;
  const char* keys[] = {"never"};
  printf("%d ", ddprun_store_wait(store, keys, 1, 50));
  printf("%d\n", strstr(ddprun_store_error(store), "never") != NULL);
  char small[2];
  size_t size = sizeof small;
  printf("%d ", ddprun_store_set(store, "k", "four", 4));
  printf("%d ", ddprun_store_get(store, "k", small, &size, 1000));
  printf("%zu\n", size);
  int64_t sum = 0;
  printf("%d ", ddprun_store_add(store, "n", -3, &sum));
  printf("%lld %d %d\n", (long long)sum, ddprun_store_set(store, NULL, "", 0), ddprun_store_set(NULL, "k", "", 0));
  ddprun_store_close(store);
  ddprun_store_close(NULL);
  return 0;
}
''')
        self.do("cc", f"-I{self.root}/usr/include", "errors.c", f"-L{self.library}", "-lddprun-store", "-o", "errors")
        run = self.do(BUILD / "ddprun", "--standalone", "--nproc-per-node=1", "--no-python", self.root / "errors",
                      LD_LIBRARY_PATH=str(self.library))
        lines = run.stdout.splitlines()
        self.assertIn(lines[0], ("1 1 1", "3 1 1"))  # timed out, or refused
        self.assertEqual(lines[1:], ["1 1", "0 5 4", "0 -3 4 4"])
