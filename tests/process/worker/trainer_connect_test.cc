#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/process/worker/trainer_support.h"

namespace ddprun::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainerConnect : public ::testing::Test, public TrainerRunner {
 protected:
  // Rank 1 never becomes a trainer. `more`: options of the launcher.
  std::vector<std::string> with_absent_rank(int ranks) {
    const std::string config = write_config();
    const std::string script = runner().write(
        "one_is_absent.sh", fmt::format("if [ \"$RANK\" = 1 ]; then exec sleep 600; fi\nexec {} --config {}\n",
                                        (std::string(DDPRUN_BINARY_DIR) + "/trainer"), config));
    return {"ddprun", "--standalone", fmt::format("--nproc-per-node={}", ranks), "--no-python", "/bin/sh", script};
  }
};

TEST_F(TrainerConnect, TheRankThatDoesNotComeIsTheRootCause) {
  write_csv("data.csv", 8, 2);
  set("ddp.connect_timeout_s", "2");
  const Finished failed = runner().run(with_absent_rank(3));
  EXPECT_NE(failed.code, 0);
  EXPECT_THAT(failed.err,
              AllOf(HasSubstr("rank 1 did not come within 2 s (ddp.connect_timeout_s): 2 of 3 ranks are there"),
                    Not(HasSubstr("/ddprun/")), Not(HasSubstr("the other side closed"))))
      << said(failed);
}

TEST_F(TrainerConnect, WhoIsMissingIsSaidWhileItIsWaitedFor) {
  write_csv("data.csv", 8, 2);
  Running job = runner().start(with_absent_rank(3));
  EXPECT_TRUE(job.wait_for("rank 0 has waited 10 s for rank 1: 2 of 3 ranks have come"));
  job.signal(SIGTERM);
  const Finished ended = job.wait();
  EXPECT_THAT(ended.err, Not(HasSubstr("rank 2 has waited"))) << "one rank speaks";
}

}  // namespace
}  // namespace ddprun::testing
