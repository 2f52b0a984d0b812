#include "common/tcp.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <thread>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TimePoint in(Duration span) { return SteadyClock::now() + span; }

Listener listen_loopback() {
  ListenOptions options;
  options.scope = ListenScope::loopback;
  auto listener = tcp_listen(options);
  EXPECT_TRUE(listener) << listener.error().message();
  return std::move(*listener);
}

UniqueFd accept_one(const Listener& listener) {
  return UniqueFd(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

struct Pair {
  UniqueFd client;
  UniqueFd server;
};

Pair connected() {
  const Listener listener = listen_loopback();
  auto client = tcp_connect({"127.0.0.1", listener.port}, in(seconds(60)));
  EXPECT_TRUE(client) << client.error().message();
  return Pair{std::move(*client), accept_one(listener)};
}

TEST(Tcp, ListensOnAPortOfTheKernelsChoiceAndConnects) {
  const Listener listener = listen_loopback();
  EXPECT_NE(listener.port, 0);
  auto client = tcp_connect_once({"localhost", listener.port}, in(seconds(60)));
  ASSERT_TRUE(client) << client.error().message();
  EXPECT_EQ(remote_endpoint(client->get())->to_string(), "127.0.0.1:" + std::to_string(listener.port));
  EXPECT_NE(::fcntl(client->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(listener.fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(::fcntl(client->get(), F_GETFL) & O_NONBLOCK, 0);
  const UniqueFd server = accept_one(listener);
  int nodelay = 0;
  socklen_t size = sizeof(nodelay);
  ::getsockopt(server.get(), IPPROTO_TCP, TCP_NODELAY, &nodelay, &size);
  EXPECT_NE(nodelay, 0);
}

TEST(Tcp, ScopeAnyTakesIpv4AndScopeLoopbackIsLoopback) {
  const auto any = tcp_listen({});
  ASSERT_TRUE(any) << any.error().message();
  EXPECT_TRUE(tcp_connect_once({"127.0.0.1", any->port}, in(seconds(60))));
  EXPECT_EQ(local_endpoint(listen_loopback().fd.get())->host, "127.0.0.1");
}

TEST(Tcp, ATakenPortIsRefusedWithItsHolder) {
  const Listener first = listen_loopback();
  ListenOptions options;
  options.scope = ListenScope::loopback;
  options.port = first.port;
  const auto second = tcp_listen(options);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Errc::refused);
  EXPECT_THAT(second.error().message(), HasSubstr("127.0.0.1:" + std::to_string(first.port)));
  EXPECT_THAT(second.error().message(), HasSubstr("in use by pid " + std::to_string(::getpid())));
}

TEST(Tcp, APortIsFreeAgainAtOnceAfterItsConnectionsWereClosed) {
  std::uint16_t port = 0;
  {
    const Listener listener = listen_loopback();
    port = listener.port;
    auto client = tcp_connect({"127.0.0.1", port}, in(seconds(60)));
    const UniqueFd server = accept_one(listener);
    ::shutdown(server.get(), SHUT_RDWR);  // we close first: the server side is in TIME_WAIT
  }
  ListenOptions options;
  options.scope = ListenScope::loopback;
  options.port = port;
  EXPECT_TRUE(tcp_listen(options));
}

TEST(Tcp, PortRangesAreTriedAndNamedWhenAllAreTaken) {
  const Listener first = listen_loopback();
  ListenOptions options;
  options.scope = ListenScope::loopback;
  options.first_port = first.port;
  options.last_port = first.port;
  const auto second = tcp_listen(options);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Errc::refused);
  EXPECT_THAT(second.error().message(), HasSubstr("all 1 ports"));
  options.first_port = 30000;
  options.last_port = 32000;
  const auto third = tcp_listen(options);
  ASSERT_TRUE(third);
  EXPECT_GE(third->port, 30000);
  EXPECT_LE(third->port, 32000);
}

TEST(Tcp, ListeningOnABadAddressIsAnError) {
  ListenOptions options;
  options.address = "not-numeric";
  EXPECT_EQ(tcp_listen(options).error().code(), Errc::invalid_argument);
  options.address = "192.0.2.1";  // TEST-NET-1: not ours
  EXPECT_THAT(tcp_listen(options).error().message(), HasSubstr("does not have that address"));
}

TEST(Tcp, ConnectOnceIsRefusedWhereNobodyListens) {
  const std::uint16_t port = listen_loopback().port;  // closed again
  const auto fd = tcp_connect_once({"127.0.0.1", port}, in(seconds(60)));
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().code(), Errc::refused);
  EXPECT_THAT(fd.error().message(), HasSubstr("127.0.0.1:" + std::to_string(port)));
}

TEST(Tcp, ConnectGivesUpAtTheDeadlineAndNamesEndpointAndReason) {
  const std::uint16_t port = listen_loopback().port;
  int retries = 0;
  const auto fd = tcp_connect({"127.0.0.1", port}, in(milliseconds(60)), [&](const Error&) { ++retries; });
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().code(), Errc::timed_out);
  EXPECT_THAT(fd.error().message(), HasSubstr("127.0.0.1:" + std::to_string(port) + " within 0.06 s"));
  EXPECT_THAT(fd.error().message(), HasSubstr("refused"));
  EXPECT_GE(retries, 1);
}

TEST(Tcp, ConnectWaitsForAListenerThatComesLate) {
  Listener listener = listen_loopback();
  const std::uint16_t port = listener.port;
  listener.fd.reset();
  std::optional<Listener> late;
  auto fd = tcp_connect({"127.0.0.1", port}, in(seconds(60)), [&](const Error& error) {
    EXPECT_EQ(error.code(), Errc::refused);
    if (late) return;
    ListenOptions options;
    options.scope = ListenScope::loopback;
    options.port = port;
    auto again = tcp_listen(options);
    ASSERT_TRUE(again) << again.error().message();
    late = std::move(*again);
  });
  EXPECT_TRUE(fd) << fd.error().message();
}

TEST(Tcp, WholeBuffersGoThroughBothWays) {
  const Pair pair = connected();
  const std::string sent(3 << 20, 'x');
  std::string received(sent.size(), '\0');
  std::thread writer([&] { EXPECT_TRUE(write_all(pair.client.get(), sent, in(seconds(60)))); });
  EXPECT_TRUE(read_exact(pair.server.get(), received.data(), received.size(), in(seconds(60))));
  writer.join();
  EXPECT_EQ(received, sent);
}

TEST(Tcp, ReadingTimesOutWithTheCountOfWhatCame) {
  const Pair pair = connected();
  ASSERT_TRUE(write_all(pair.client.get(), "abc", in(seconds(60))));
  char buffer[8];
  const auto read = read_exact(pair.server.get(), buffer, sizeof(buffer), in(milliseconds(30)));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), Errc::timed_out);
  EXPECT_THAT(read.error().message(), HasSubstr("3 of 8 bytes"));
}

TEST(Tcp, WritingToAPeerThatDoesNotReadTimesOut) {
  const Pair pair = connected();
  const std::string lots(64 << 20, 'x');
  const auto written = write_all(pair.client.get(), lots, in(milliseconds(50)));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), Errc::timed_out);
}

TEST(Tcp, APeerThatIsGoneIsSaidSo) {
  Pair pair = connected();
  pair.server.reset();
  char byte = 0;
  const auto read = read_exact(pair.client.get(), &byte, 1, in(seconds(60)));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), Errc::peer_closed);
  // The first write may still be taken by the kernel; soon one fails, and never with SIGPIPE.
  Result<void> written;
  for (int i = 0; i < 1000 && written; ++i) written = write_all(pair.client.get(), "x", in(seconds(60)));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), Errc::peer_closed);
}

TEST(Tcp, OwnAddressTowardsAPeer) { EXPECT_EQ(local_address_towards({"127.0.0.1", 29400}), "127.0.0.1"); }

}  // namespace
}  // namespace ddprun
