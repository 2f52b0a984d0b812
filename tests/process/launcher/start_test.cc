#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/support/surface_run.h"

// How a job starts and a script ends: which libraries and which python are taken, what --run-path does at the end.
namespace {

using ddprun::testing::Finished;
using ddprun::testing::ProgramRunner;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Start : public testing::Test {
 protected:
  Finished ddprun(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ddprun");
    return runner.run(arguments);
  }
  ProgramRunner runner;
};

// An empty element (or one without a slash at its start) is the current directory.
TEST_F(Start, NoProgramLooksForLibrariesInTheCurrentDirectory) {
  int looked_at = 0;
  for (const auto& file : std::filesystem::directory_iterator(DDPRUN_BINARY_DIR)) {
    if (!file.is_regular_file() || ::access(file.path().c_str(), X_OK) != 0) continue;
    const auto end = runner.run({"/usr/bin/env", "readelf", "-d", file.path()});
    if (end.code == 127) GTEST_SKIP() << "there is no readelf";
    if (end.code != 0) continue;  // a script
    ++looked_at;
    for (const std::string tag : {"Library runpath: [", "Library rpath: ["}) {
      const auto at = end.out.find(tag);
      if (at == std::string::npos) continue;
      const auto from = at + tag.size();
      std::string list = end.out.substr(from, end.out.find(']', from) - from) + ":";
      for (std::size_t next = list.find(':'); next != std::string::npos; next = list.find(':')) {
        const std::string element = list.substr(0, next);
        list.erase(0, next + 1);
        EXPECT_TRUE(element.starts_with("/") || element.starts_with("$ORIGIN"))
            << file.path() << ": '" << element << "'";
      }
    }
  }
  EXPECT_GE(looked_at, 3);
}

TEST_F(Start, APlantedLibraryIsNotLoaded) {
  std::filesystem::copy_file(std::string(DDPRUN_BINARY_DIR) + "/tests/fake_nvml/libnvidia-ml.so.1",
                             runner / "libnvidia-ml.so.1");
  runner.environment["FAKE_NVML_GPUS"] = "9";
  const auto end = ddprun({"--nproc-per-node=auto", "--no-python", "sh", "-c", "echo $WORLD_SIZE"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, Not(HasSubstr("9")));
}

TEST_F(Start, SlurmsCpusCount) {
  runner.environment["SLURM_CPUS_PER_TASK"] = "1";
  auto end = ddprun({"--nproc-per-node=cpu", "--no-python", "sh", "-c", "echo $WORLD_SIZE"});
  EXPECT_EQ(end.out, "1\n") << end.err;
  end = ddprun({"--nproc-per-node=2", "--no-python", "sh", "-c", "echo $OMP_NUM_THREADS"});
  EXPECT_EQ(end.out, "1\n1\n");
  EXPECT_THAT(end.err, HasSubstr(": 1 CPU can be used here"));
}

// A control group that may use one CPU, and one without a limit of its own in it, as containers are nested.
class QuotaGroup {
 public:
  QuotaGroup() {
    for (const std::string root : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"}) {
      outer_ = root + "/ddprun_test_" + std::to_string(::getpid());
      std::error_code failure;
      if (!std::filesystem::create_directory(outer_, failure) || failure) continue;
      const bool v1 = std::filesystem::exists(outer_ + "/cpu.cfs_quota_us");
      std::ofstream quota(outer_ + (v1 ? "/cpu.cfs_quota_us" : "/cpu.max"), std::ios::in);
      quota << (v1 ? "100000" : "100000 100000") << std::flush;
      if (quota && std::filesystem::create_directory(inner(), failure)) return;
      std::filesystem::remove(outer_, failure);
    }
    outer_.clear();
  }
  ~QuotaGroup() {
    if (outer_.empty()) return;
    ::rmdir(inner().c_str());
    ::rmdir(outer_.c_str());
  }
  QuotaGroup(const QuotaGroup&) = delete;
  QuotaGroup& operator=(const QuotaGroup&) = delete;
  bool made() const { return !outer_.empty(); }
  std::string inner() const { return outer_ + "/inner"; }

 private:
  std::string outer_;
};

TEST_F(Start, AContainersQuotaCounts) {
  if (::sysconf(_SC_NPROCESSORS_ONLN) < 2) GTEST_SKIP() << "needs two CPUs";
  const QuotaGroup group;
  if (!group.made()) GTEST_SKIP() << "needs to make a control group with a CPU quota";
  const auto inside = [&](const std::string& arguments) {
    return runner.run(
        {"/bin/sh", "-c",
         "echo $$ > " + group.inner() + "/cgroup.procs && exec " + DDPRUN_BINARY_DIR + "/ddprun " + arguments});
  };
  auto end = inside("--nproc-per-node=cpu --no-python sh -c 'echo $WORLD_SIZE'");
  EXPECT_EQ(end.out, "1\n") << end.err;
  end = inside("--nproc-per-node=2 --no-python sh -c 'echo $OMP_NUM_THREADS'");
  EXPECT_EQ(end.out, "1\n1\n") << end.err;
  EXPECT_THAT(end.err, HasSubstr("1 CPU can be used here (the control group's quota is 1)"));
}

TEST_F(Start, AnInactiveEnvironmentsOwnPython) {
  for (const char* name : {"env/bin", "active/bin"}) {
    std::filesystem::create_directories(runner / name);
    runner.write(std::string(name) + "/python", "#!/bin/sh\necho python of " + std::string(name) + "\n", true);
  }
  runner.write("env/pyvenv.cfg", "");
  runner.write("t.py", "");
  std::filesystem::create_symlink(std::string(DDPRUN_BINARY_DIR) + "/ddprun", runner / "env/bin/ddprun");
  auto end = runner.run({runner / "env/bin/ddprun", "t.py"});
  EXPECT_EQ(end.out, "python of env/bin\n") << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr(" W ")));
  runner.environment["VIRTUAL_ENV"] = runner / "active";
  end = runner.run({runner / "env/bin/ddprun", "t.py"});
  EXPECT_EQ(end.out, "python of env/bin\n") << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("active/bin/python"), HasSubstr("env/bin/python")));
  end = ddprun({"t.py"});
  EXPECT_EQ(end.out, "python of active/bin\n") << end.err;
  EXPECT_THAT(end.err, HasSubstr("of VIRTUAL_ENV; python of PATH is "));
}

TEST_F(Start, WindowsLineEndsAreShown) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--nproc-per-node=2\r", "t.py"}, std::vector<std::string>{"--standalone", "t.py\r"},
        std::vector<std::string>{"--standalone\r", "t.py"}, std::vector<std::string>{"--rdzv-id", "job\r", "t.py"}}) {
    const auto end = ddprun(words);
    EXPECT_NE(end.code, 0);
    EXPECT_EQ(end.err.find('\r'), std::string::npos) << end.err;
    EXPECT_THAT(end.err, AllOf(HasSubstr("\\r'"), HasSubstr("Windows line ends")));
  }
}

class RunPath : public Start {
 protected:
  Finished run(const std::string& script) {
    runner.write("s.py", script);
    return ddprun({"--run-path", "s.py"});
  }
};

// Libraries whose threads still run when the interpreter is taken down abort now and then.
TEST_F(RunPath, EndsWithoutTakingTheInterpreterDown) {
  const auto end =
      run("import atexit, ctypes, threading, time\n"
          "ctypes.CDLL(None).on_exit(ctypes.CDLL(None).abort, None)\n"
          "def late():\n"
          "    time.sleep(0.2); print('thread')\n"
          "threading.Thread(target=late).start()\n"
          "atexit.register(print, 'atexit')\n"
          "print('main', end='')\n");
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.out, "mainthread\natexit\n");
}

TEST_F(RunPath, KeepsTheScriptsExitCodeAndWords) {
  EXPECT_EQ(run("import sys; sys.exit(5)").code, 5);
  EXPECT_EQ(run("import sys; sys.exit()").code, 0);
  EXPECT_EQ(run("import sys; sys.stdout.close(); sys.stderr = None").code, 0);
  EXPECT_EQ(run("import os, sys; sys.stdout = open('/dev/full', 'w'); print('lost')").code, 120);
  auto end = run("import sys; sys.exit('no data')");
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("no data\n"));
  end = run("raise ValueError('the flux is NaN')");
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, AllOf(HasSubstr("Traceback"), HasSubstr("ValueError: the flux is NaN")));
  end = run("import sys; sys.excepthook = lambda *a: print('my hook', file=sys.stderr)\nraise ValueError('x')");
  EXPECT_THAT(end.err, HasSubstr("my hook"));
}

}  // namespace
