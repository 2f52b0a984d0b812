#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/support/surface_run.h"

// --leftovers=wait, from the outside: what workers started may take its time, until somebody wants the job to end.
namespace ddprun::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LeftoversWait : public ::testing::Test {
 protected:
  // Says on standard output what becomes of it: an upload that finishes its piece when it is told to end.
  const std::string upload_ =
      "setsid sh -c 'trap \"echo piece saved; exit 0\" TERM; echo upload up; "
      "while :; do sleep 0.05; done' & ";
  Running start(const std::string& script, const std::string& timeout = "20") {
    return runner_.start({"ddprun", "--standalone", "--leftovers=wait", "--shutdown-timeout=" + timeout, "--no-python",
                          "sh", "-c", script});
  }
  ProgramRunner runner_;
};

TEST_F(LeftoversWait, ASignalAfterTheWorkersEndReachesTheUploadWhichFinishesItsPiece) {
  Running job = start(upload_ + "sleep 0.1");
  ASSERT_TRUE(job.wait_for("upload up"));
  ASSERT_TRUE(job.wait_for("waiting for what they started"));
  job.signal(SIGTERM);
  const Finished end = job.wait();
  EXPECT_EQ(end.code, 143) << end.err;
  EXPECT_THAT(end.out, HasSubstr("piece saved"));
  EXPECT_THAT(end.err, AllOf(HasSubstr("gets SIGTERM: pid"), Not(HasSubstr("--leftovers=wait lets them finish)")),
                             Not(HasSubstr("SIGKILL"))));
}

TEST_F(LeftoversWait, ASignalWhileTheWorkerRunsReachesTheUploadToo) {
  Running job = start("trap 'exit 75' TERM; " + upload_ + "echo worker up; while :; do sleep 0.05; done");
  ASSERT_TRUE(job.wait_for("upload up"));
  ASSERT_TRUE(job.wait_for("worker up"));
  job.signal(SIGTERM);
  const Finished end = job.wait();
  EXPECT_EQ(end.code, 75) << end.err;
  EXPECT_THAT(end.out, HasSubstr("piece saved"));
}

TEST_F(LeftoversWait, ASecondSignalLeavesTheUploadNoTime) {
  Running job = start("setsid sh -c 'trap \"\" TERM INT; echo upload up; while :; do sleep 0.05; done' & sleep 0.1");
  ASSERT_TRUE(job.wait_for("upload up"));
  ASSERT_TRUE(job.wait_for("waiting for what they started"));
  job.signal(SIGTERM);
  ASSERT_TRUE(job.wait_for("gets SIGTERM: pid"));
  job.signal(SIGINT);
  const Finished end = job.wait();
  EXPECT_EQ(end.code, 143) << end.err;
  EXPECT_THAT(end.err, HasSubstr("killed with SIGKILL: pid"));
}

TEST_F(LeftoversWait, AFailedWorkersHelpersAreEndedAsWithEnd) {
  const Finished end = start(upload_ + "sleep 0.1; exit 3").wait();
  EXPECT_EQ(end.code, 3) << end.err;
  EXPECT_THAT(end.out, HasSubstr("piece saved"));
}

}  // namespace
}  // namespace ddprun::testing
