// What proves to an agent that the rendezvous is dead, so that its workers may run on, and what does not.
#include "launcher/agent/rendezvous_client.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <future>
#include <memory>
#include <thread>

#include "common/check.h"
#include "common/tcp.h"
#include "common/wire.h"

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
  // nullptr: that port of the address is taken, or this host has no such address.
  static std::unique_ptr<Door> at(const std::string& address, std::uint16_t port) {
    ListenOptions options;
    options.address = address;
    options.port = port;
    auto listener = tcp_listen(options);
    if (!listener) return nullptr;
    return std::unique_ptr<Door>(new Door(std::move(*listener), address));
  }
  std::uint16_t port() const { return listener_.port; }
  const std::string& host() const { return host_; }
  UniqueFd accept() const { return UniqueFd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  void shut() { listener_.fd.reset(); }

 private:
  Door(Listener listener, std::string host) : listener_(std::move(listener)), host_(std::move(host)) {}

  Listener listener_;
  std::string host_ = "127.0.0.1";
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
  options.node.job.keep_alive_interval = std::chrono::seconds(200);
  options.node.job.keep_alive_max_attempt = 3;
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
    EXPECT_EQ(renewals, 0) << "neither a greeting nor a connection that was closed proves that we are known";
  }
  door.shut();
  const TimePoint limit = hard_limit();
  while (renewals < 1 && SteadyClock::now() < limit) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_GE(renewals, 1) << "a refused connection does";
  boost::asio::co_spawn(io, client.close(milliseconds(100)), boost::asio::detached);
  work.reset();
  thread.join();
}

// A client on a thread of its own; what the test asks of it happens there.
class Running {
 public:
  explicit Running(ClientOptions options, ClientEvents events = {})
      : client_(io_, std::move(options), std::move(events)) {
    client_.start();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Running() {
    boost::asio::co_spawn(io_, client_.close(milliseconds(100)), boost::asio::detached);
    work_.reset();
    thread_.join();
  }
  template <typename F>
  auto ask(F question) {
    std::packaged_task<decltype(question(client_))()> task([&] { return question(client_); });
    boost::asio::post(io_, [&task] { task(); });
    return task.get_future().get();
  }

 private:
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
  RendezvousClient client_;
  std::thread thread_;
};

ClientOptions options_for(const Door& door) {
  ClientOptions options;
  options.endpoint = Endpoint{"127.0.0.1", door.port()};
  options.node.run_id = RunId("job");
  options.node.node_id = NodeId("node");
  options.node.job.keep_alive_interval = std::chrono::seconds(200);
  return options;
}

// The next frame of the client, decoded by nobody.
std::string frame_of(const UniqueFd& peer) {
  char head[4];
  if (!read_exact(peer.get(), head, sizeof head, hard_limit())) return "";
  std::string body(WireReader(std::string_view(head, sizeof head)).u32(), '\0');
  if (!read_exact(peer.get(), body.data(), body.size(), hard_limit())) return "";
  return body;
}

// Answers the first heartbeat of a connection that the client has opened: now it is of use.
void be_useful(const UniqueFd& peer) {
  while (true) {
    auto message = rdzv::decode_agent(frame_of(peer));
    ASSERT_TRUE(message) << message.error().message();
    if (auto* beat = std::get_if<rdzv::Heartbeat>(&*message)) {
      rdzv::HeartbeatAck ack;
      ack.sequence = beat->sequence;
      ASSERT_TRUE(write_all(peer.get(), rdzv::encode(ack), hard_limit()));
      return;
    }
  }
}

TEST(RendezvousClient, AServerThatGreetsAndClosesIsNoRendezvous) {
  Door door;
  auto options = options_for(door);
  Error hopeless(Errc::system, "not yet");
  std::atomic<bool> gave_up{false};
  ClientEvents events;
  events.on_hopeless = [&](Error error) {
    hopeless = std::move(error);
    gave_up = true;
  };
  options.read_timeout = milliseconds(1'500);
  Running running(options, events);
  const TimePoint begin = running.ask([](RendezvousClient& client) { return client.last_useful(); });
  running.ask([](RendezvousClient& client) { client.join(Round(0), 1); });
  int connections = 0;
  std::thread server([&] {
    while (true) {
      const UniqueFd peer = door.accept();
      if (!peer || gave_up) return;
      ++connections;
      answer(peer);
    }
  });
  const TimePoint limit = hard_limit();
  while (!gave_up && SteadyClock::now() < limit) std::this_thread::sleep_for(milliseconds(5));
  const auto since = running.ask([](RendezvousClient& client) { return client.disconnected_since(); });
  auto last = tcp_connect_once(Endpoint{"127.0.0.1", door.port()}, limit);  // lets the server see that it is over
  server.join();
  EXPECT_TRUE(gave_up);
  EXPECT_NE(hopeless.message().find("does not work as a rendezvous for 1 s"), std::string::npos) << hopeless.message();
  EXPECT_EQ(since, begin) << "a greeting is nothing that a working rendezvous says about us";
  EXPECT_LT(connections, 12) << "20, 40, 80, ... ms lie between two tries";
}

// Takes what comes for another protocol, until it is closed.
class Stranger {
 public:
  explicit Stranger(const Door& door) : door_(door), thread_([this] { serve(); }) {}
  ~Stranger() {
    over_ = true;
    auto last = tcp_connect_once(Endpoint{door_.host(), door_.port()}, hard_limit());  // wakes it
    thread_.join();
  }
  int connections() const { return connections_; }

 private:
  void serve() {
    while (true) {
      const UniqueFd peer = door_.accept();
      if (!peer || over_) return;
      ++connections_;
      const std::string words = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
      EXPECT_TRUE(write_all(peer.get(), words, hard_limit()));
      char byte;  // or our RST would overtake our words
      while (::read(peer.get(), &byte, 1) > 0) continue;
    }
  }

  const Door& door_;
  std::atomic<bool> over_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

// "localhost" is 127.0.0.1, then ::1.
TEST(RendezvousClient, ANameOfSeveralAddressesIsRightIfOneOfThemIs) {
  const Door wrong;
  const auto right = Door::at("::1", wrong.port());
  if (!right) GTEST_SKIP() << "port " << wrong.port() << " of ::1 cannot be had";
  auto options = options_for(wrong);
  options.endpoint.host = "localhost";
  std::atomic<int> gave_up{0};
  ClientEvents events;
  events.on_hopeless = [&](const Error&) { ++gave_up; };
  const Stranger stranger(wrong);
  Running running(options, events);
  running.ask([](RendezvousClient& client) { client.join(Round(0), 1); });
  const UniqueFd peer = right->accept();
  answer(peer);
  be_useful(peer);
  const TimePoint limit = hard_limit();
  const auto since = [](RendezvousClient& client) { return client.disconnected_since(); };
  while (running.ask(since) && SteadyClock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(running.ask(since), std::nullopt);
  EXPECT_EQ(stranger.connections(), 1);
  EXPECT_EQ(gave_up, 0);
}

TEST(RendezvousClient, ANameWithStrangersAtAllItsAddressesIsHopelessOnce) {
  const Door first;
  const auto second = Door::at("::1", first.port());
  if (!second) GTEST_SKIP() << "port " << first.port() << " of ::1 cannot be had";
  auto options = options_for(first);
  options.endpoint.host = "localhost";
  std::atomic<int> gave_up{0};
  ClientEvents events;
  events.on_hopeless = [&](const Error&) { ++gave_up; };
  const Stranger one(first), two(*second);
  {
    Running running(options, events);
    const TimePoint limit = hard_limit();
    while ((gave_up == 0 || two.connections() == 0) && SteadyClock::now() < limit) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  EXPECT_EQ(gave_up, 1);
  EXPECT_EQ(one.connections(), 1);
  EXPECT_EQ(two.connections(), 1);
}

TEST(RendezvousClient, AnAnswerAboutUsIsUsefulAndRenewsTheLease) {
  Door door;
  std::atomic<int> renewals{0};
  ClientEvents events;
  events.on_lease = [&](TimePoint) { ++renewals; };
  Running running(options_for(door), events);
  const TimePoint begin = running.ask([](RendezvousClient& client) { return client.last_useful(); });
  running.ask([](RendezvousClient& client) { client.join(Round(0), 1); });
  const UniqueFd peer = door.accept();
  answer(peer);
  EXPECT_EQ(running.ask([](RendezvousClient& client) { return client.disconnected_since(); }), begin);
  be_useful(peer);
  const TimePoint limit = hard_limit();
  while (renewals == 0 && SteadyClock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(running.ask([](RendezvousClient& client) { return client.disconnected_since(); }), std::nullopt);
  EXPECT_GT(running.ask([](RendezvousClient& client) { return client.last_useful(); }), begin);
}

// Between two heartbeats nothing useful comes, and that time is no time without a rendezvous.
TEST(RendezvousClient, ItIsDisconnectedSinceTheConnectionOfUseBroke) {
  Door door;
  Running running(options_for(door));
  const auto since = [](RendezvousClient& client) { return client.disconnected_since(); };
  const auto useful = [](RendezvousClient& client) { return client.last_useful(); };
  running.ask([](RendezvousClient& client) { client.join(Round(0), 1); });
  EXPECT_FALSE(running.ask([](RendezvousClient& client) { return client.ever_useful(); }));
  UniqueFd peer = door.accept();
  answer(peer);
  be_useful(peer);
  const TimePoint limit = hard_limit();
  while (running.ask(since) && SteadyClock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(running.ask([](RendezvousClient& client) { return client.ever_useful(); }));
  while (SteadyClock::now() < running.ask(useful) + milliseconds(20)) std::this_thread::sleep_for(milliseconds(1));
  const TimePoint before = SteadyClock::now();
  peer.reset();
  while (!running.ask(since) && SteadyClock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  const auto broken = running.ask(since);
  ASSERT_TRUE(broken.has_value());
  EXPECT_GE(*broken, before);
  const UniqueFd again = door.accept();
  answer(again);  // a greeting is nothing that a working rendezvous says about us
  EXPECT_FALSE(frame_of(again).empty());
  EXPECT_EQ(running.ask(since), broken);
}

// The end of the lease says nothing about the workers: no FIN, also where no descriptor is free any more.
TEST(RendezvousClient, TheOldConnectionStaysOpenWithoutADescriptorToSpare) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan looks at memory through a pipe, for which there is no descriptor here";
#endif
  Door door;
  auto options = options_for(door);
  options.node.job.keep_alive_interval = milliseconds(300);
  options.node.job.keep_alive_max_attempt = 1;
  std::atomic<bool> expired{false};
  ClientEvents events;
  events.on_lease_expired = [&] { expired = true; };
  Running running(options, events);
  running.ask([](RendezvousClient& client) { client.join(Round(0), 1); });
  const UniqueFd peer = door.accept();
  answer(peer);
  be_useful(peer);
  rdzv::Assignment slice;
  slice.round = Round(1);
  running.ask([&](RendezvousClient& client) { client.assigned(slice); });
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const TimePoint limit = hard_limit();
  while (!expired && SteadyClock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  running.ask([](RendezvousClient&) { return 0; });  // what belongs to that moment is done
  char byte;
  ssize_t got;
  while ((got = ::recv(peer.get(), &byte, 1, MSG_DONTWAIT)) > 0) continue;
  const int why = errno;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(expired);
  EXPECT_EQ(got, -1) << "the connection was closed";
  EXPECT_EQ(why, EAGAIN);
}

}  // namespace
}  // namespace ddprun::launcher
