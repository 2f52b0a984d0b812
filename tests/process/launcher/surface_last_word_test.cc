#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tests/support/surface_run.h"

// The end of a job, seen from the outside: its last words, its report, and what may come in between.
namespace {

using ddprun::testing::ProgramRunner;
using testing::HasSubstr;
using testing::Not;

TEST(LastWord, SignalsAfterItChangeNothing) {
  ProgramRunner runner;
  for (int i = 0; i < 15; ++i) {
    auto job = runner.start({"ddprun", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", "exit 75"});
    ASSERT_TRUE(job.wait_for("every worker ended with 75"));
    for (const int number : {SIGTERM, SIGUSR1, SIGINT}) job.signal(number);
    const auto end = job.wait();
    EXPECT_EQ(end.code, 75) << end.err;
  }
}

}  // namespace
