#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace ddprun {
namespace {

// A launcher that serves a store needs a descriptor per connection; what it gives its workers is what it was given.
TEST(DescriptorLimit, TheLaunchersIsRaisedAndTheWorkersIsNot) {
  const std::string command =
      "ulimit -Sn 300; exec " DDPRUN_BINARY_DIR
      "/ddprun --standalone --nproc-per-node=1 --no-python /bin/sh -c 'echo worker=$(ulimit -Sn) hard=$(ulimit -Hn) "
      "launcher=$(sed -n \"s/^Max open files *\\([0-9]*\\).*/\\1/p\" /proc/$PPID/limits)' 2>&1";
  FILE* run = ::popen(command.c_str(), "r");
  ASSERT_NE(run, nullptr);
  std::string said;
  char line[512];
  while (std::fgets(line, sizeof line, run) != nullptr) said += line;
  EXPECT_EQ(::pclose(run), 0) << said;
  unsigned long worker = 0;
  unsigned long hard = 0;
  unsigned long launcher = 0;
  const std::size_t at = said.find("worker=");
  ASSERT_NE(at, std::string::npos) << said;
  ASSERT_EQ(std::sscanf(said.c_str() + at, "worker=%lu hard=%lu launcher=%lu", &worker, &hard, &launcher), 3) << said;
  EXPECT_EQ(worker, 300u) << said;
  EXPECT_EQ(launcher, hard) << said;
}

}  // namespace
}  // namespace ddprun
