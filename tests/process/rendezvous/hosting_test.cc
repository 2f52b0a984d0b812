// When a node takes the rendezvous endpoint for itself, and how long MASTER_PORT is its own.
#include "launcher/hosting.h"

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
  services.host_rendezvous = [](asio::io_context&, Listener listener) -> Result<std::unique_ptr<RendezvousHost>> {
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
  options.nnodes_min = options.nnodes_max = 2;
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

}  // namespace
}  // namespace ddprun::launcher
