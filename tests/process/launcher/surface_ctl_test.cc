#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/surface_held_port.h"
#include "tests/support/surface_run.h"

// ddpctl from the outside, as far as it needs no rendezvous; the rest is in tests/process/rendezvous.
namespace {

using ddprun::testing::HeldPort;
using ddprun::testing::ProgramRunner;
using testing::AllOf;
using testing::HasSubstr;

class Ddpctl : public testing::Test {
 protected:
  ProgramRunner runner;
};

TEST_F(Ddpctl, Doctor) {
  runner.environment["LD_LIBRARY_PATH"] = std::string(DDPRUN_BINARY_DIR) + "/tests/fake_nvml";
  runner.environment["FAKE_NVML_GPUS"] = "2";
  HeldPort port;
  const std::string endpoint = "--rdzv-endpoint=127.0.0.1:" + std::to_string(port.port);
  auto run = runner.run({"ddpctl", endpoint, "doctor", "--log-dir=."});
  EXPECT_THAT(run.out, AllOf(HasSubstr("ok       GPUs: 2 of 2 can be seen"), HasSubstr("open files: limit"),
                             HasSubstr("log directory: "), HasSubstr("nobody serves it now")));
  EXPECT_EQ(run.code, 0) << run.err;  // this host's own warnings included
  ASSERT_EQ(::listen(port.fd, 4), 0);
  run = runner.run({"ddpctl", endpoint, "doctor"});
  EXPECT_THAT(run.out, HasSubstr("served by pid " + std::to_string(::getpid())));
  runner.environment["FAKE_NVML_GPUS"] = "300";
  run = runner.run({"/bin/sh", "-c", std::string("ulimit -n 200; ") + DDPRUN_BINARY_DIR + "/ddpctl doctor"});
  EXPECT_EQ(run.code, 78);
  EXPECT_EQ(run.out.rfind("error    open files: the limit is 200", 0), 0u) << run.out;
}

TEST_F(Ddpctl, WithoutARendezvousItSaysHowToNameOne) {
  HeldPort port;  // bound, and nobody listens
  const auto run = runner.run({"ddpctl", "--rdzv-endpoint=127.0.0.1:" + std::to_string(port.port), "status"});
  EXPECT_EQ(run.code, 69);
  EXPECT_THAT(run.err, AllOf(HasSubstr("no rendezvous at 127.0.0.1:" + std::to_string(port.port)),
                             HasSubstr("--rdzv-endpoint=HOST:PORT"), HasSubstr("logs its own at the start")));
}

// What doctor says of a folder for logs is what ddprun would say.
TEST_F(Ddpctl, DoctorTriesTheLogDirectory) {
  runner.write("file", "x");
  const auto doctor = [&](const std::string& folder) {
    return runner.run({"ddpctl", "doctor", "--log-dir=" + folder});
  };
  auto run = doctor(runner / "file");
  EXPECT_EQ(run.code, 78);
  EXPECT_EQ(run.out.rfind("error    log directory: log directory ", 0), 0u) << run.out;
  EXPECT_THAT(run.out, HasSubstr("exists but is a file; give a folder"));
  run = doctor("/proc");
  EXPECT_EQ(run.code, 78);
  EXPECT_THAT(run.out, HasSubstr("error    log directory: cannot make a folder for this run in /proc"));
  run = doctor(runner / "new" + "/deep");
  EXPECT_EQ(run.code, 0) << run.out;
  EXPECT_THAT(run.out, HasSubstr("ok       log directory: "));
  EXPECT_FALSE(std::filesystem::exists(runner / "new")) << "doctor left something behind";
}

TEST_F(Ddpctl, StoreHelp) {
  for (const char* word : {"--help", "-h"}) {
    const auto run = runner.run({"ddpctl", "store", word});
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("Usage: ddpctl store get KEY"), HasSubstr("--raw\n"), HasSubstr("--json\n"),
                               HasSubstr("--timeout-ms N\n")));
  }
  EXPECT_EQ(runner.run({"ddpctl", "store", "--hlep"}).code, 2);
}

// A help that nobody got is no success, whichever program prints it.
TEST_F(Ddpctl, AndTheOthersTellOutputThatIsLost) {
  for (const std::string& line :
       {std::string("ddprun --help"), std::string("ddprun --version"), std::string("ddprun --help-markdown"),
        std::string("ddprun --print-completion=bash"), std::string("ddprun-launch --help"),
        std::string("ddprun-rendezvous --help"), std::string("ddprun-rendezvous --version"),
        std::string("ddpctl --help"), std::string("ddpctl --version"), std::string("ddpctl status --help"),
        std::string("ddpctl store --help"), std::string("ddpctl doctor --help")}) {
    const auto lost = runner.run({"/bin/sh", "-c", DDPRUN_BINARY_DIR "/" + line + " > /dev/full"});
    EXPECT_EQ(lost.code, 1) << line << "\n" << lost.err;
    EXPECT_THAT(lost.err, HasSubstr(line.substr(0, line.find(' ')) + ": cannot write all of the output: ")) << line;
  }
}

}  // namespace
