#include "rendezvous/net/acceptor.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/store_protocol.h"
#include "common/tcp.h"
#include "rendezvous/store/store_service.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

TimePoint hard_limit() { return SteadyClock::now() + 60s; }

std::string hello() { return std::string("\x00\xce\xf7\x85\x3c\x0d\x07\0\0\0", 10); }  // VALIDATE, PING 7

Listener listener() {
  ListenOptions options;
  options.scope = ListenScope::loopback;
  auto made = tcp_listen(options);
  EXPECT_TRUE(made) << made.error().message();
  return std::move(*made);
}

// An acceptor with a store, and those whose first byte is 'D' kept; on this thread.
struct Port {
  explicit Port(Strangers::Limits limits = {}, StoreServerOptions store_options = {})
      : acceptor(io, listener(), limits), store(acceptor, store_options) {
    acceptor.set_taker('D', [this](Acceptor::Opening opening) {
      bytes.emplace_back(opening.bytes);
      auto socket = acceptor.to_socket(opening);
      EXPECT_TRUE(socket);
      sockets.push_back(std::move(*socket));
    });
  }
  UniqueFd connect(std::string_view first = {}) {
    auto fd = tcp_connect({"127.0.0.1", acceptor.port()}, hard_limit());
    EXPECT_TRUE(fd) << fd.error().message();
    EXPECT_TRUE(write_all(fd->get(), first, hard_limit()));
    return std::move(*fd);
  }
  // Runs the loop until `condition` holds.
  template <typename Condition>
  bool until(Condition condition) {
    const TimePoint limit = hard_limit();
    while (!condition()) {
      if (SteadyClock::now() > limit) return false;
      io.run_for(1ms);
      io.restart();
    }
    return true;
  }
  bool closes(const UniqueFd& fd) {
    return until([&] {
      char byte = 0;
      return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
    });
  }
  bool is_open(const UniqueFd& fd) {
    char byte = 0;
    return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
  }

  boost::asio::io_context io{1};
  Acceptor acceptor;
  StoreService store;
  std::vector<std::string> bytes;
  std::vector<boost::asio::ip::tcp::socket> sockets;
};

TEST(Acceptor, TheFirstByteSaysWhoseAConnectionIs) {
  Port port;
  const UniqueFd agent = port.connect("DDPR hello");
  const UniqueFd client = port.connect(hello());
  ASSERT_TRUE(port.until([&] { return port.bytes.size() == 1 && port.store.connections() == 1; }));
  EXPECT_EQ(port.bytes[0], "DDPR hello");
  // Clearing the store ends its clients only.
  port.acceptor.drop_spoken(Acceptor::kAnyOther);
  port.store.clear();
  EXPECT_TRUE(port.until([&] { return port.store.connections() == 0; }));
  boost::system::error_code error;
  boost::asio::write(port.sockets[0], boost::asio::buffer("still", 5), error);
  EXPECT_FALSE(error);
  std::string answer(5, ' ');
  EXPECT_TRUE(read_exact(agent.get(), answer.data(), answer.size(), hard_limit()));
  EXPECT_EQ(answer, "still");
}

TEST(Acceptor, OthersDoNotCountForTheStoresConnections) {
  StoreServerOptions options;
  options.max_connections = 1;
  Port port({}, options);
  const UniqueFd client = port.connect(hello());
  const UniqueFd agent = port.connect("DX");
  ASSERT_TRUE(port.until([&] { return port.bytes.size() == 1 && port.store.connections() == 1; }));
  const UniqueFd second = port.connect(hello());
  EXPECT_TRUE(port.closes(second));
  EXPECT_EQ(port.store.stats().refused_descriptors, 1u);
  EXPECT_EQ(port.store.connections(), 1u);
}

TEST(Acceptor, WhoSaysNothingIsClosedInTime) {
  Strangers::Limits limits;
  limits.time = 50ms;
  Port port(limits);
  const UniqueFd client = port.connect(hello());
  const UniqueFd silent = port.connect();
  EXPECT_TRUE(port.closes(silent));
  EXPECT_EQ(port.acceptor.counts().silent, 1u);
  EXPECT_EQ(port.store.connections(), 1u);
}

TEST(Acceptor, ManySilentOnesOfOneAddressGoSoonerTheOldestFirst) {
  Strangers::Limits limits;
  limits.time = 600s;
  limits.patience = 20ms;
  limits.per_address = 3;
  Port port(limits);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(port.connect());
  ASSERT_TRUE(port.until([&] { return port.acceptor.counts().silent == 5; }));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(port.closes(silent[static_cast<std::size_t>(i)])) << i;
  for (std::size_t i = 5; i < 8; ++i) EXPECT_TRUE(port.is_open(silent[i])) << i;
}

TEST(Acceptor, AStormOfThoseWhoSpeakIsTakenWhole) {
  Strangers::Limits limits;
  limits.patience = 10ms;  // they are all older before the loop looks at them
  Port port(limits);
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(port.connect(i % 2 == 0 ? hello() : "D"));
  EXPECT_TRUE(port.until([&] { return port.bytes.size() == 150 && port.store.connections() == 150; }));
  EXPECT_EQ(port.acceptor.counts().silent, 0u);
}

TEST(Acceptor, BeyondTheBoundOneGoesForEachThatComes) {
  Strangers::Limits limits;
  limits.time = limits.patience = 600s;
  limits.most = 10;
  Port port(limits);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(port.connect());
  ASSERT_TRUE(port.until([&] { return port.acceptor.counts().silent == 30; }));
  EXPECT_EQ(port.acceptor.pending(), 10u);
  const UniqueFd client = port.connect(hello());
  EXPECT_TRUE(port.until([&] { return port.store.connections() == 1; }));
}

// One end of a pair of sockets; the other end says nothing, or something that nobody reads.
struct Someone final : Stranger {
  Someone(Strangers& list, std::uint8_t address, TimePoint since, std::string_view said = {}) : strangers(list) {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    ours.reset(fds[0]);
    theirs.reset(fds[1]);
    EXPECT_TRUE(write_all(theirs.get(), said, hard_limit()));
    PeerKey key;
    key.bytes[15] = address;
    strangers.enter(*this, key, since);
  }
  ~Someone() override { strangers.leave(*this); }
  int descriptor() const override { return ours.get(); }
  void turn_away(std::string_view) override {
    strangers.leave(*this);
    gone = true;
  }
  Strangers& strangers;
  UniqueFd ours, theirs;
  bool gone = false;
};

TEST(Strangers, ACrowdGoesSoonAlsoBehindOneWhoHasTime) {
  boost::asio::io_context io(1);
  Strangers::Limits limits;
  limits.time = 600s;
  limits.patience = 200ms;
  limits.per_address = 1;
  const auto strangers = std::make_shared<Strangers>(io, limits);
  const TimePoint now = SteadyClock::now();
  Someone first(*strangers, 1, now - 190ms), second(*strangers, 1, now - 190ms);  // the clock is set for these
  Someone other(*strangers, 2, now - 100ms);
  Someone third(*strangers, 1, now - 90ms), fourth(*strangers, 1, now - 90ms);
  const TimePoint limit = hard_limit();
  while (!third.gone && SteadyClock::now() < limit && io.run_one_for(1s) > 0) {
  }
  EXPECT_TRUE(first.gone && second.gone && third.gone);
  EXPECT_FALSE(fourth.gone || other.gone);  // alone of their address
  strangers->close();
}

TEST(Strangers, RoomIsMadeByTheSilentThoughThoseWhoSpokeAreMore) {
  boost::asio::io_context io(1);
  const auto strangers = std::make_shared<Strangers>(io, Strangers::Limits());
  const TimePoint now = SteadyClock::now();
  Someone spoke(*strangers, 1, now, "x"), spoke_too(*strangers, 1, now, "x"), silent(*strangers, 2, now);
  EXPECT_TRUE(strangers->make_room());
  EXPECT_TRUE(silent.gone);
  EXPECT_FALSE(strangers->make_room());
  strangers->close();
}

}  // namespace
}  // namespace ddprun::rendezvous
