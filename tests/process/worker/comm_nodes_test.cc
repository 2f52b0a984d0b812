#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/free_port.h"

// Real nodes (launchers on this host) with real workers: the way that make_communicator() finds through the store.
namespace ddprun {
namespace {

using ::testing::HasSubstr;

std::string run(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen(("timeout 90 " + command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  const int status = ::pclose(pipe);
  return text + (status == 0 ? "" : "\nfailed\n");
}

// Node i runs workers[i] workers of `trainer bench`; what node 0 printed, with the others' words on failure.
std::string bench_on_nodes(const std::vector<int>& workers, const std::string& bench) {
  const std::string bin = DDPRUN_BINARY_DIR, endpoint = "127.0.0.1:" + testing::free_port();
  std::vector<std::string> said(workers.size());
  std::vector<std::thread> nodes;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    nodes.emplace_back([&, i] {
      said[i] = run(bin + "/ddprun --nnodes=" + std::to_string(workers.size()) + " --node-rank=" + std::to_string(i) +
                    " --nproc-per-node=" + std::to_string(workers[i]) + " --rdzv-id=nodes --rdzv-endpoint=" + endpoint +
                    " " + bin + "/trainer bench " + bench + " --json");
    });
  }
  for (std::thread& node : nodes) node.join();
  std::string all;
  for (const std::string& text : said) all += text;
  return all;
}

TEST(CommNodes, OneRankOnEachNodeIsATcpRing) {
  const std::string said = bench_on_nodes({1, 1}, "all-reduce --size 1MiB");
  EXPECT_THAT(said, HasSubstr("\"communicator\": \"TCP ring, 2 ranks\""));
  EXPECT_THAT(said, HasSubstr("\"wrong\": 0"));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("failed\n")));
}

TEST(CommNodes, SeveralRanksOnEachNodeUseSharedMemoryAndTcp) {
  const std::string said = bench_on_nodes({1, 2}, "reduce-scatter --size 1MiB");
  EXPECT_THAT(said, HasSubstr("\"communicator\": \"shared memory and TCP, 3 ranks on 2 hosts\""));
  EXPECT_THAT(said, HasSubstr("\"wrong\": 0"));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("failed\n")));
}

TEST(CommNodes, OneNodeIsSharedMemory) {
  const std::string said = bench_on_nodes({3}, "all-gather --size 1MiB");
  EXPECT_THAT(said, HasSubstr("\"communicator\": \"shared memory, 3 ranks\""));
  EXPECT_THAT(said, HasSubstr("\"wrong\": 0"));
}

}  // namespace
}  // namespace ddprun
