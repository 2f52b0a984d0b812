// What proves to an agent that the rendezvous is dead, so that its workers may run on, and what does not.
#include "launcher/rendezvous_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <thread>

#include "common/check.h"
#include "common/tcp.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

TimePoint hard_limit() { return SteadyClock::now() + std::chrono::seconds(60); }

// A listener whose every step the test decides.
class Door {
 public:
  Door() {
    ListenOptions options;
    options.scope = ListenScope::loopback;
    auto listener = tcp_listen(options);
    CHECK(listener.has_value(), "no port is free");
    listener_ = std::move(*listener);
  }
  std::uint16_t port() const { return listener_.port; }
  UniqueFd accept() const { return UniqueFd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  void shut() { listener_.fd.reset(); }

 private:
  Listener listener_;
};

void answer(const UniqueFd& peer) {
  char hello[rdzv::kHelloBytes];
  ASSERT_TRUE(read_exact(peer.get(), hello, sizeof hello, hard_limit()));
  rdzv::HelloReply reply;
  reply.why = "daemon";
  ASSERT_TRUE(write_all(peer.get(), rdzv::encode(reply), hard_limit()));
}

TEST(RendezvousClient, OnlyARefusedConnectionProvesThatTheDaemonIsDead) {
  Door door;
  boost::asio::io_context io(1);
  ClientOptions options;
  options.endpoint = Endpoint{"127.0.0.1", door.port()};
  options.node.keep_alive_interval = std::chrono::seconds(600);
  options.node.keep_alive_attempts = 3;
  std::atomic<int> renewals{0};
  ClientEvents events;
  events.on_lease = [&](TimePoint) { ++renewals; };
  RendezvousClient client(io, options, events);
  client.start();
  auto work = boost::asio::make_work_guard(io);
  std::thread thread([&] { io.run(); });
  {
    const UniqueFd first = door.accept();
    answer(first);
  }                                           // closed: by whom, and is it dead?
  for (int i = 0; i < 3; ++i) door.accept();  // closed before it has answered, as by a daemon without descriptors
  {
    // This one comes when the third of those is over for the client.
    const UniqueFd last = door.accept();
    EXPECT_EQ(renewals, 1) << "a connection that was closed proves nothing";
  }
  door.shut();
  const TimePoint limit = hard_limit();
  while (renewals < 2 && SteadyClock::now() < limit) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_GE(renewals, 2) << "a refused connection does";
  boost::asio::co_spawn(io, client.close(milliseconds(100)), boost::asio::detached);
  work.reset();
  thread.join();
}

}  // namespace
}  // namespace ddprun::launcher
