// When a node takes the rendezvous endpoint for itself, and how long MASTER_PORT is its own.
#include "launcher/agent/hosting.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <string>

#include "common/lookup.h"

namespace ddprun::launcher {
namespace {

namespace asio = boost::asio;

bool can_bind(const std::string& address, std::uint16_t port) {
  ListenOptions options;
  options.address = address;
  options.port = port;
  return tcp_listen(options).has_value();
}

class HeldHost final : public RendezvousHost {
 public:
  explicit HeldHost(Listener listener) : listener_(std::move(listener)) {}
  std::uint16_t port() const override { return listener_.port; }
  asio::awaitable<void> drain(RunId, std::chrono::milliseconds) override { co_return; }

 private:
  Listener listener_;
};

Services holding() {
  Services services;
  services.host_rendezvous = [](asio::io_context&, Listener listener,
                                HostedFor) -> Result<std::unique_ptr<RendezvousHost>> {
    return std::unique_ptr<RendezvousHost>(std::make_unique<HeldHost>(std::move(listener)));
  };
  return services;
}

void run(asio::io_context& io, asio::awaitable<void> task) {
  asio::co_spawn(io, std::move(task), [](std::exception_ptr failure) { EXPECT_FALSE(failure); });
  io.restart();
  io.run();
}

TEST(Hosting, ANodeThatFoundARendezvousDuringTheLookUpHostsNone) {
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  const auto addresses = Lookup(name.data()).wait(SteadyClock::now() + std::chrono::seconds(30));
  if (!addresses || std::none_of(addresses->begin(), addresses->end(), [](const auto& a) { return can_bind(a, 0); })) {
    GTEST_SKIP() << "the name of this host, " << name.data() << ", has no address of this host";
  }
  asio::io_context io(1);
  AgentOptions options;
  options.job.nnodes_min = options.job.nnodes_max = 2;
  options.endpoint = Endpoint{name.data(), 0};
  Hosting hosting(io, options, holding());
  bool wanted = false;
  int asked = 0;
  const std::function<bool()> still_wanted = [&] { return ++asked, wanted; };
  run(io, hosting.try_to_host(still_wanted));
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(hosting.hosting());
  wanted = true;
  run(io, hosting.try_to_host(still_wanted));
  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(hosting.hosting());
  run(io, hosting.try_to_host(still_wanted));
  EXPECT_EQ(asked, 2) << "it serves already";
}

TEST(Hosting, WhetherItIsWantedIsAskedAlsoWhereNothingIsLookedUp) {
  asio::io_context io(1);
  AgentOptions options;
  options.job.nnodes_min = options.job.nnodes_max = 2;
  options.endpoint = Endpoint{"127.0.0.1", 0};
  Hosting hosting(io, options, holding());
  run(io, hosting.try_to_host([] { return false; }));
  EXPECT_FALSE(hosting.hosting());
  run(io, hosting.try_to_host());
  EXPECT_TRUE(hosting.hosting());
}

// Between the round's begin and the start of its workers may lie --restart-backoff.
TEST(Hosting, ThePortThatAWorkerIsToBindIsReservedUntilTheWorkersStart) {
  asio::io_context io(1);
  AgentOptions options;
  options.standalone = true;
  options.serve_worker_store = false;
  options.endpoint = Endpoint{"127.0.0.1", 0};
  Hosting hosting(io, options, holding());
  asio::co_spawn(io, hosting.prepare(),
                 [](std::exception_ptr failure, const Result<void>& prepared) { EXPECT_TRUE(!failure && prepared); });
  io.run();
  rdzv::Assignment first;
  for (int round = 0; round < 2; ++round) {
    const auto port = hosting.bind_store();
    ASSERT_TRUE(port) << port.error().message();
    ASSERT_TRUE(hosting.serve_store(first));
    EXPECT_FALSE(can_bind("127.0.0.1", *port));
    hosting.release_master_port();
    EXPECT_TRUE(can_bind("127.0.0.1", *port));
  }
}

TEST(Hosting, AFixedMasterPortIsBoundAnewAfterARoundWithoutWorkers) {
  asio::io_context io(1);
  AgentOptions options;
  options.job.nnodes_min = options.job.nnodes_max = 2;
  options.serve_worker_store = false;
  {
    ListenOptions range;  // which the kernel gives to nobody who asks for any port
    range.first_port = 24'000;
    range.last_port = 24'999;
    auto free = tcp_listen(range);
    ASSERT_TRUE(free);
    options.master_port = free->port;
  }
  Hosting hosting(io, options, holding());
  rdzv::Assignment first, second;
  second.group_rank = GroupRank(1);
  for (const rdzv::Assignment& assignment : {first, first, second, first}) {
    const auto port = hosting.bind_store();
    ASSERT_TRUE(port) << port.error().message();
    EXPECT_EQ(*port, *options.master_port);
    ASSERT_TRUE(hosting.serve_store(assignment));
    EXPECT_EQ(can_bind("", *port), assignment.group_rank.value != 0) << "who is not the first lets go of its own";
  }
}

}  // namespace
}  // namespace ddprun::launcher
