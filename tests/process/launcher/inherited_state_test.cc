#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/surface_held_port.h"
#include "tests/support/surface_run.h"

// What an exec keeps of whoever started us. A few lines of Python set it, as job runners do, and become the program.
namespace {

using ddprun::testing::Finished;
using ddprun::testing::HeldPort;
using ddprun::testing::ProgramRunner;
using ddprun::testing::Running;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Inherited : public testing::Test {
 protected:
  // PREPARATION in Python, then the exec of argv.
  Running start(const std::string& preparation, std::vector<std::string> argv) {
    argv.front() = std::string(DDPRUN_BINARY_DIR) + "/" + argv.front();
    std::vector<std::string> all{
        "/usr/bin/env", "python3", "-c",
        "import fcntl, os, resource, signal, socket, sys\n" + preparation + "\nos.execv(sys.argv[1], sys.argv[1:])"};
    all.insert(all.end(), argv.begin(), argv.end());
    return runner.start(all);
  }
  Running sh(const std::string& preparation, const std::string& script, std::vector<std::string> flags = {}) {
    std::vector<std::string> argv{"ddprun", "--standalone"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), {"--no-python", "sh", "-c", script});
    return start(preparation, argv);
  }

  ProgramRunner runner;
};

const std::string kBlockAll = "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))";

TEST_F(Inherited, BlockedSignalsStillEndTheJob) {
  auto job = sh(kBlockAll, "echo up; exec sleep 100");
  ASSERT_TRUE(job.wait_for("up"));
  job.signal(SIGTERM);
  const auto end = job.wait();
  EXPECT_EQ(end.code, 128 + SIGTERM) << end.err;
  EXPECT_FALSE(end.timed_out);
}

TEST_F(Inherited, BlockedSignalsStillEndTheDaemon) {
  auto daemon = start(kBlockAll, {"ddprun-rendezvous", "--port", "0"});
  ASSERT_TRUE(daemon.wait_for("serving port="));
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait().code, 0);
}

TEST_F(Inherited, WorkersStartWithoutBlockedSignals) {
  const auto end = sh(kBlockAll, "grep -E '^Sig(Blk|Ign)' /proc/self/status").wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("SigBlk:\t0000000000000000")) << end.err;
}

TEST_F(Inherited, WhatWasIgnoredStaysIgnoredInTheWorkersButForSigchld) {
  const auto end = sh("for s in (signal.SIGCHLD, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\n"
                      "for s in (signal.SIGPIPE, signal.SIGXFSZ): signal.signal(s, signal.SIG_DFL)",
                      "grep ^SigIgn /proc/self/status; (exit 7); echo child $?")
                       .wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("SigIgn:\t0000000000000001"), HasSubstr("child 7"))) << end.err;
}

TEST_F(Inherited, ASigtermThatIsIgnoredIsSaid) {
  const auto end = sh("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "kill -TERM $$; echo ran").wait();
  EXPECT_EQ(end.out, "ran\n") << end.err;
  EXPECT_THAT(end.err, HasSubstr("SIGTERM was ignored when this started"));
  EXPECT_THAT(sh("signal.signal(signal.SIGHUP, signal.SIG_IGN)", "true").wait().err, Not(HasSubstr("was ignored")));
}

TEST_F(Inherited, ADaemonInTheBackgroundOfAScriptIsNotEndedByItsInterrupt) {
  auto daemon = start("signal.signal(signal.SIGINT, signal.SIG_IGN)", {"ddprun-rendezvous", "--port", "0"});
  ASSERT_TRUE(daemon.wait_for("serving port="));
  daemon.signal(SIGINT);
  daemon.signal(SIGTERM);
  const auto end = daemon.wait();
  EXPECT_EQ(end.code, 0);
  EXPECT_THAT(end.err, AllOf(HasSubstr("signal=15"), Not(HasSubstr("signal=2"))));
}

// The shell's limit is the workers'; we lift ours as far as we may, and the log is whole.
TEST_F(Inherited, ALimitOnTheSizeOfFilesIsNotOurEnd) {
  const auto end = sh("resource.setrlimit(resource.RLIMIT_FSIZE, (300000, resource.RLIM_INFINITY))",
                      "ulimit -f; i=0; while [ $i -lt 9000 ]; do echo 'a line of thirty-six characters.....'; "
                      "i=$((i+1)); done; echo the end >&2",
                      {"--log-dir=logs", "--tee=1"})
                       .wait();
  EXPECT_THAT(end.out, HasSubstr("[default0]:585\n")) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the end")) << end.err;
  EXPECT_EQ(end.code, 0) << end.err;
  int logs = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(runner / "logs")) {
    if (entry.path().filename() != "stdout.log") continue;
    ++logs;
    EXPECT_EQ(entry.file_size(), 4u + 9'000 * 37);  // more than 300,000
  }
  EXPECT_EQ(logs, 1);
}

TEST_F(Inherited, ALimitBelowTheFlightRecordersSizeCostsTheRecorderOnly) {
  const auto end =
      sh("resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))", "ulimit -f", {"--nproc-per-node=2"}).wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.out, "1\n1\n");
  EXPECT_THAT(end.err, HasSubstr("ulimit -f unlimited"));
}

TEST_F(Inherited, AnAlarmOfTheParentEndsTheJobWithAWord) {
  // It rings when the worker is up, whatever that takes here.
  const auto end = sh("signal.setitimer(signal.ITIMER_REAL, 3600)", "kill -ALRM $PPID; exec sleep 100").wait();
  EXPECT_EQ(end.code, 128 + SIGALRM) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("an alarm that was set before our start"), HasSubstr("SIGALRM: the job ends")));
}

// Rings after 0.1 s of our CPU time, which copying 30 MB takes.
TEST_F(Inherited, TimersOfCpuTimeAreSwitchedOff) {
  const auto end = sh("signal.setitimer(signal.ITIMER_PROF, 0.1); signal.setitimer(signal.ITIMER_VIRTUAL, 0.1)",
                      "yes 'a line of words' | head -c 30000000", {"--tee=1", "--log-dir=/dev/null"})
                       .wait();
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST_F(Inherited, AWorkingDirectoryThatIsGoneIsSaid) {
  const auto end =
      sh("os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')", "echo ran", {"--log-dir=/dev/null"}).wait();
  EXPECT_THAT(end.err, HasSubstr("the working directory was removed"));
  EXPECT_EQ(end.out, "ran\n") << end.err;
}

// Another program's event loop may have left its flag on the pipe that we share with it.
TEST_F(Inherited, StandardStreamsThatDoNotBlockLoseNothing) {
  const std::string nonblocking =
      "for fd in (1, 2): fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)\n"
      "fcntl.fcntl(1, 1031, 4096)\n";  // F_SETPIPE_SZ: less than the help
  auto help = start(nonblocking, {"ddprun", "--help"});
  ::usleep(300'000);  // the pipe is full before somebody reads
  const auto end = help.wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("--version"));
}

TEST_F(Inherited, NonblockingSocketsToo) {
  const auto end = start(
                       "a, b = socket.socketpair()\n"
                       "if os.fork() == 0:\n"
                       "    b.close(); data = b''\n"
                       "    while True:\n"
                       "        more = a.recv(65536)\n"
                       "        if not more: break\n"
                       "        data += more\n"
                       "    os.write(1, data); os._exit(0)\n"
                       "a.close(); b.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)\n"
                       "b.setblocking(False); os.dup2(b.fileno(), 1); b.close()",
                       {"ddprun", "--help"})
                       .wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("--version"));
}

TEST_F(Inherited, ClosedStandardStreamsAndOddVariables) {
  const auto end =
      sh("os.closerange(0, 1)\n"
         "os.environb.update({b'WITH SPACE': b'x', b'BYTES': b'\\xff\\x01', b'BASH_FUNC_f%%': b'() { :; }'})",
         "printenv BYTES | od -An -tx1; tr '\\0' '\\n' < /proc/$$/environ | grep '^WITH SPACE='")
          .wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.out, " ff 01 0a\nWITH SPACE=x\n");
}

TEST_F(Inherited, NicenessUmaskAndLimitsAreTheWorkers) {
  const auto end =
      sh("os.nice(5); os.umask(0o27); resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
         "resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
         "nice; umask; ulimit -Sc; ulimit -Sn")
          .wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.out, std::to_string(5 + ::getpriority(PRIO_PROCESS, 0)) + "\n0027\n0\n200\n");
}

// Output that is the result and cannot be written is a failure.
TEST_F(Inherited, HelpIntoAFullDevice) {
  for (const char* program : {"ddprun", "ddpctl", "ddprun-rendezvous", "ddprun-launch"}) {
    const auto end = start("os.dup2(os.open('/dev/full', os.O_WRONLY), 1)", {program, "--help"}).wait();
    EXPECT_EQ(end.code, 1) << program;
    EXPECT_THAT(end.err, HasSubstr("cannot write all of the output")) << program;
  }
}

TEST_F(Inherited, NobodyReadsTheErrors) {
  const auto end = start("r, w = os.pipe(); os.close(r); os.dup2(w, 2)", {"ddprun", "--no-such-option"}).wait();
  EXPECT_EQ(end.code, 2);
}

}  // namespace
