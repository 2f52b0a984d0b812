// Training on two nodes, with a launcher of its own each, that meet by IPv4 or by IPv6.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/process/worker/trainer_support.h"

namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;

// A free port of the loopback address of `family`; 0 where there is none.
std::uint16_t free_port(int family) {
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(family);
  socklen_t size = sizeof(sockaddr_in);
  if (family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr = in6addr_loopback;
    size = sizeof(sockaddr_in6);
  } else {
    reinterpret_cast<sockaddr_in*>(&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  const int fd = ::socket(family, SOCK_STREAM, 0);
  if (fd < 0) return 0;
  auto* where = reinterpret_cast<sockaddr*>(&address);
  const bool bound = ::bind(fd, where, size) == 0 && ::getsockname(fd, where, &size) == 0;
  ::close(fd);
  if (!bound) return 0;
  return ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                  : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

class TrainerNodes : public ::testing::TestWithParam<int>, public TrainerRunner {};

TEST_P(TrainerNodes, TwoNodesTrainToTheBitsOfOne) {
  const std::uint16_t port = free_port(GetParam());
  if (port == 0) GTEST_SKIP() << "no such loopback address on this machine";
  write_csv("data.csv", 64, 5);
  set("model.name", "mlp");
  set("model.hidden", "[16]");
  unset("model.init");
  set("checkpoint.every_steps", "0");
  const std::string last = "/step-000000008/model.safetensors";

  set("checkpoint.dir", path("one"));
  const Finished one = run(4);
  ASSERT_EQ(one.code, 0) << said(one);

  set("checkpoint.dir", path("two"));
  const std::string endpoint = fmt::format("{}:{}", GetParam() == AF_INET6 ? "[::1]" : "127.0.0.1", port);
  const auto node = [&](int rank) {
    return runner().start({"ddprun", "--nnodes=2", fmt::format("--node-rank={}", rank), "--nproc-per-node=2",
                           "--rdzv-backend=c10d", "--rdzv-id=nodes", "--rdzv-endpoint=" + endpoint, "trainer",
                           "--config", write_config()});
  };
  Running first = node(0), second = node(1);
  const Finished a = first.wait(), b = second.wait();
  ASSERT_EQ(a.code, 0) << said(a) << said(b);
  ASSERT_EQ(b.code, 0) << said(a) << said(b);
  EXPECT_THAT(a.out, HasSubstr("shared memory and TCP, 4 ranks on 2 hosts")) << said(a);

  const std::string weights = read("one" + last);
  ASSERT_FALSE(weights.empty()) << said(one);
  EXPECT_TRUE(read("two" + last) == weights) << "other weights than on one node";
}

INSTANTIATE_TEST_SUITE_P(Loopback, TrainerNodes, ::testing::Values(AF_INET, AF_INET6),
                         [](const auto& family) { return family.param == AF_INET6 ? "ipv6" : "ipv4"; });

}  // namespace
}  // namespace ddprun::testing
