#include "rendezvous/store/store_server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <boost/asio/write.hpp>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "common/store_client.h"
#include "common/tcp.h"
#include "tests/process/rendezvous/store/served.h"
#include "tests/support/store_transcript.h"

namespace ddprun::rendezvous {
namespace {

// A sanitizer keeps freed memory for a while.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

using namespace std::chrono_literals;
using test::eventually;
using test::hard_limit;
using test::hex;
using test::Served;

std::string read_bytes(int fd, std::size_t size) {
  std::string bytes(size, '\0');
  const auto got = read_exact(fd, bytes.data(), size, hard_limit());
  EXPECT_TRUE(got) << got.error().message();
  return bytes;
}

// True when the server closes; bytes that come before are thrown away.
bool closes(int fd) {
  const TimePoint limit = hard_limit();
  char sink[4096];
  while (SteadyClock::now() < limit) {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, 1000) <= 0) continue;
    const ssize_t n = ::recv(fd, sink, sizeof sink, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return true;
  }
  return false;
}

void write_bytes(int fd, std::string_view bytes) {
  const auto sent = write_all(fd, bytes, hard_limit());
  EXPECT_TRUE(sent) << sent.error().message();
}

std::string hello() {
  std::string bytes;
  store_wire::validate(bytes);
  store_wire::ping(bytes, 7);
  return bytes;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

void replay(const test::Transcript& transcript) {
  SCOPED_TRACE(transcript.name);
  Served served;
  std::map<int, UniqueFd> connections;
  std::uint64_t sent = 0;
  for (const auto& step : transcript.steps) {
    UniqueFd& fd = connections[step.connection];
    if (!fd) fd = served.connect();
    if (step.from_client && step.eof) {
      fd.reset();
      ASSERT_TRUE(eventually([&] { return served.stats().connections < connections.size(); }));
    } else if (step.from_client) {
      write_bytes(fd.get(), step.bytes);
      sent += step.bytes.size();
      // The next step may be another connection's: this one's bytes come first.
      ASSERT_TRUE(eventually([&] {
        const StoreStats stats = served.stats();
        return stats.bytes_in >= sent || stats.connections < connections.size();
      }));
    } else if (step.eof) {
      ASSERT_TRUE(closes(fd.get())) << "line " << step.line;
    } else if (step.any_order) {
      EXPECT_EQ(test::sorted_key_list(read_bytes(fd.get(), step.bytes.size())), test::sorted_key_list(step.bytes));
    } else {
      ASSERT_EQ(hex(read_bytes(fd.get(), step.bytes.size())), hex(step.bytes)) << "line " << step.line;
    }
  }
}

TEST(StoreServer, AnswersOverSocketsAsRecorded) {
  for (const char* file : {"transcripts.txt", "ours.txt"}) {
    for (const auto& transcript : test::load_transcripts(file)) replay(transcript);
  }
}

TEST(StoreServer, StrangersAreShownOutAndCounted) {
  Served served;
  StoreClient good = served.client();
  ASSERT_TRUE(good.set("k", "v"));
  const std::vector<std::string> strangers{"GET / HTTP/1.0\r\nHost: x\r\n\r\n", std::string("\x16\x03\x01\x02", 4),
                                           "SSH-2.0-scan\r\n", std::string(64, '\0'), std::string(1 << 20, '\x7f')};
  std::vector<UniqueFd> silent;
  for (const std::string& bytes : strangers) {
    UniqueFd fd = served.connect();
    ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    EXPECT_TRUE(closes(fd.get())) << bytes.substr(0, 10);
    silent.push_back(served.connect());
    EXPECT_EQ(*good.get("k"), "v");
  }
  const StoreStats stats = served.stats();
  EXPECT_EQ(stats.refused_garbage, strangers.size());
  EXPECT_EQ(stats.connections, 1 + silent.size());
}

TEST(StoreServer, SilentConnectionsAreClosedAfterTheSetupTimeout) {
  StoreServerOptions options;
  options.setup_timeout = 50ms;
  Served served(options);
  StoreClient good = served.client();
  UniqueFd silent = served.connect();
  UniqueFd half = served.connect();
  write_bytes(half.get(), std::string_view("\x00\xce", 2));
  EXPECT_TRUE(closes(silent.get()));
  EXPECT_TRUE(closes(half.get()));
  EXPECT_EQ(served.stats().setup_timeouts, 2u);
  EXPECT_TRUE(good.ping());
}

TEST(StoreServer, ClearEndsOldConnectionsAndForgetsTheirWaits) {
  Served served;
  UniqueFd old = served.connect();
  std::string bytes = hello();
  const std::string keys[1] = {"go"};
  store_wire::set(bytes, "old", "1");
  store_wire::keys(bytes, StoreOp::wait, keys);
  write_bytes(old.get(), bytes);
  ASSERT_TRUE(eventually([&] { return served.stats().waiting == 1; }));
  UniqueFd untold = served.connect();  // has said nothing: may be anybody
  ASSERT_TRUE(eventually([&] { return served.stats().connections == 2; }));
  served.on_thread([&] { served.server().clear(); });
  EXPECT_TRUE(closes(old.get()));
  write_bytes(untold.get(), hello());
  EXPECT_EQ(read_bytes(untold.get(), 4), std::string("\x07\0\0\0", 4));
  StoreClient fresh = served.client("");
  EXPECT_FALSE(*fresh.check("old"));
  ASSERT_TRUE(fresh.set_confirmed("go", "1"));
  EXPECT_EQ(served.stats().waiting, 0u);
}

TEST(StoreServer, ClientsThatVanishInAMessageLeaveNothing) {
  Served served;
  StoreClient good = served.client();
  ASSERT_TRUE(good.set_confirmed("k", "old"));
  const std::size_t before = open_descriptors();
  std::string message = hello();
  const std::size_t start = message.size();
  store_wire::set(message, "/k", std::string(5000, 'N'));
  for (std::size_t i = 0; i < 200; ++i) {
    UniqueFd fd = served.connect();
    write_bytes(fd.get(), std::string_view(message).substr(0, start + (i * 37) % (message.size() - start)));
    if (i % 2 == 1) {
      const linger reset{.l_onoff = 1, .l_linger = 0};
      ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
  }
  EXPECT_TRUE(eventually([&] { return served.stats().connections == 1; }));
  EXPECT_EQ(*good.get("k"), "old");
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_LT(served.stats().buffered_bytes, 10000u);
}

TEST(StoreServer, AReaderThatDoesNotReadCostsItselfOnly) {
  StoreServerOptions options;
  options.max_unread_bytes = 1 << 20;
  Served served(options);
  StoreClient good = served.client("");
  ASSERT_TRUE(good.set_confirmed("big", std::string(1 << 20, 'x')));
  UniqueFd slow = served.connect();
  std::string bytes = hello();
  constexpr int kGets = 200;
  for (int i = 0; i < kGets; ++i) store_wire::get(bytes, "big");
  write_bytes(slow.get(), bytes);
  // The kernel's buffers are full, and so is ours.
  ASSERT_TRUE(
      eventually([&] { return served.stats().bytes_out > (1u << 20) && served.stats().buffered_bytes > 1000; }));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(good.add("n", 1));
  EXPECT_LT(served.stats().buffered_bytes, std::size_t{16} << 20);
  // When it does read, all of it comes.
  EXPECT_EQ(hex(read_bytes(slow.get(), 4)), "07000000");
  for (int i = 0; i < kGets; ++i) {
    const std::string value = read_bytes(slow.get(), 8 + (1 << 20));
    ASSERT_EQ(value.substr(8, 3), "xxx") << i;
  }
  EXPECT_TRUE(eventually([&] { return served.stats().buffered_bytes < (1u << 20); }));
}

TEST(StoreServer, MemoryCapsCloseTheOneThatGoesOver) {
  StoreServerOptions options;
  options.max_store_bytes = 1 << 20;
  options.max_buffered_bytes = 2 << 20;
  Served served(options);
  StoreClient good = served.client();
  ASSERT_TRUE(good.set_confirmed("k", "v"));
  UniqueFd full = served.connect();
  std::string bytes = hello();
  store_wire::set(bytes, "a", std::string(2 << 20, 'x'));
  ::send(full.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  UniqueFd half = served.connect();
  std::string promise = hello();
  store_wire::set(promise, "b", std::string(5 << 20, 'x'));
  const auto sent = write_all(half.get(), std::string_view(promise).substr(0, 4 << 20), hard_limit());
  if (sent) {
    EXPECT_TRUE(closes(half.get()));
  }
  EXPECT_TRUE(eventually([&] { return served.stats().refused_memory >= 1; }));
  EXPECT_EQ(*good.get("k"), "v");
}

TEST(StoreServer, ALengthAloneCostsNoMemory) {
  Served served;
  std::vector<UniqueFd> claims;
  std::string set;
  store_wire::set(set, "k", std::string(8 << 20, 'x'));
  for (int i = 0; i < 100; ++i) {
    claims.push_back(served.connect());
    std::string bytes = hello();
    bytes += set.substr(0, 100);
    write_bytes(claims.back().get(), bytes);
  }
  ASSERT_TRUE(eventually([&] { return served.stats().requests[static_cast<std::size_t>(StoreOp::ping)] == 100; }));
  EXPECT_LT(served.stats().buffered_bytes, 100u * 5000u);
}

// So many bytes of a SET whose value never comes whole.
std::string half_set(std::size_t size) {
  std::string bytes = hello();
  std::string whole;
  store_wire::set(whole, "parked", std::string(size + 1, 'x'));
  return bytes + whole.substr(0, whole.size() - 1);
}

TEST(StoreServer, WhoParksHalfRequestsPaysForFullBuffersNotTheOthers) {
  StoreServerOptions options;
  options.max_buffered_bytes = 1 << 20;
  Served served(options);
  UniqueFd honest = served.connect();  // its request comes in two pieces
  std::string bytes = hello();
  store_wire::set(bytes, "honest", std::string(100'000, 'v'));
  write_bytes(honest.get(), bytes.substr(0, 50'000));
  ASSERT_TRUE(eventually([&] { return served.stats().buffered_bytes > 40'000; }));
  std::vector<UniqueFd> parked;
  for (int i = 0; i < 8; ++i) {
    parked.push_back(served.connect());
    write_bytes(parked.back().get(), half_set(300'000));
  }
  ASSERT_TRUE(eventually([&] { return served.stats().refused_memory > 0; }));
  write_bytes(honest.get(), bytes.substr(50'000));
  StoreClient reader = served.client("");
  EXPECT_TRUE(eventually([&] { return reader.get("honest")->size() == 100'000u; }));
}

TEST(StoreServer, AHalfRequestThatDoesNotGoOnIsClosedOneThatDoesIsNot) {
  StoreServerOptions options;
  options.half_request_timeout = 1500ms;
  Served served(options);
  UniqueFd slow = served.connect();
  UniqueFd parked = served.connect();
  write_bytes(parked.get(), half_set(10'000));
  std::string bytes = hello();
  store_wire::set(bytes, "slow", std::string(2'000'000, 'v'));
  StoreClient idle = served.client("");
  std::size_t sent = 0;
  while (sent < bytes.size()) {  // much longer than the limit in all
    const std::size_t piece = std::min<std::size_t>(100'000, bytes.size() - sent);
    write_bytes(slow.get(), bytes.substr(sent, piece));
    sent += piece;
    std::this_thread::sleep_for(100ms);  // that is how slow it is
  }
  EXPECT_TRUE(closes(parked.get()));
  EXPECT_TRUE(eventually([&] { return idle.get("slow")->size() == 2'000'000u; }));
}

TEST(StoreServer, AtTheDescriptorLimitNewOnesAreRefusedAndOldOnesServed) {
#ifdef __SANITIZE_ADDRESS__
  // The asan preset has UBSan too, whose vptr check opens a pipe to probe memory and takes EMFILE for a bad object.
  GTEST_SKIP() << "UBSan's vptr check needs a free descriptor";
#endif
  Served served;
  StoreClient good = served.client();
  ASSERT_TRUE(good.set_confirmed("k", "v"));
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 40; ++i) crowd.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Client and server share the limit here: the clients have their sockets, the server finds room for five.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(crowd.back().get()) + 6;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto connect = [&](std::size_t which) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(served.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(crowd[which].get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  };
  // Of silent ones the oldest makes room for each that comes; who has spoken stays, and newcomers are refused.
  for (std::size_t i = 0; i < 15; ++i) connect(i);
  EXPECT_TRUE(eventually([&] { return served.stats().setup_timeouts == 10; }));
  for (std::size_t i = 10; i < 15; ++i) write_bytes(crowd[i].get(), hello());
  for (std::size_t i = 10; i < 15; ++i) EXPECT_EQ(hex(read_bytes(crowd[i].get(), 4)), "07000000");
  for (std::size_t i = 15; i < 40; ++i) connect(i);
  EXPECT_TRUE(eventually([&] { return served.stats().refused_descriptors == 25; }));
  EXPECT_EQ(served.stats().setup_timeouts, 10u);
  EXPECT_EQ(*good.get("k"), "v");
  crowd.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  StoreClient later = served.client();
  EXPECT_EQ(*later.get("k"), "v");
}

TEST(StoreServer, MaxConnectionsIsKept) {
  StoreServerOptions options;
  options.max_connections = 2;
  Served served(options);
  StoreClient one = served.client();
  std::optional<StoreClient> two(served.client());
  UniqueFd three = served.connect();
  write_bytes(three.get(), hello());
  EXPECT_TRUE(closes(three.get()));
  EXPECT_EQ(served.stats().refused_descriptors, 1u);
  two.reset();
  ASSERT_TRUE(eventually([&] { return served.stats().connections == 1; }));
  StoreClient four = served.client();
  EXPECT_TRUE(four.ping());
}

TEST(StoreServer, WhoComesWhileItIsHeldIsServedLaterUnlessItHasEnded) {
  Served served;
  StoreClient old = served.client();
  EXPECT_TRUE(old.set("k", "of the old round"));
  served.on_thread([&] { served.server().hold(); });
  EXPECT_EQ(served.stats().connections, 0u);
  const auto accepted = served.stats().accepted;
  const UniqueFd early = served.connect(), ended = served.connect();
  write_bytes(early.get(), hello());
  write_bytes(ended.get(), hello());
  ASSERT_EQ(::shutdown(ended.get(), SHUT_WR), 0);
  ASSERT_TRUE(eventually([&] {  // the server's side knows
    tcp_info info{};
    socklen_t size = sizeof info;
    return ::getsockopt(ended.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_FIN_WAIT2;
  }));
  served.on_thread([&] { served.server().serve(); });
  EXPECT_EQ(hex(read_bytes(early.get(), 4)), "07000000");
  EXPECT_TRUE(closes(ended.get()));
  EXPECT_EQ(served.stats().accepted, accepted + 1);
  EXPECT_EQ(served.stats().keys, 0u);
  EXPECT_TRUE(served.client().ping());
}

TEST(StoreServer, ThePortIsFreeAgainAtOnceAndTheNewStoreIsEmpty) {
  std::uint16_t port = 0;
  for (int round = 0; round < 3; ++round) {
    Served served({}, port);
    port = served.port();
    StoreClient client = served.client();
    EXPECT_EQ(*client.add("round", 1), 1);
    std::vector<UniqueFd> others;
    for (int i = 0; i < 20; ++i) others.push_back(served.connect());
    served.on_thread([&] { served.server().close(); });
  }
}

TEST(StoreServer, AClientWaitsWhileOthersAreServed) {
  Served served;
  std::thread waiter([&] {
    StoreClient client = served.client();
    EXPECT_EQ(*client.get("late", hard_limit()), "now");
  });
  EXPECT_TRUE(eventually([&] { return served.stats().waiting == 1; }));
  StoreClient client = served.client();
  EXPECT_TRUE(client.set("late", "now"));
  waiter.join();
}

TEST(StoreServer, MemoryIsBackAfterAMillionSetsAndDeletes) {
  const auto rss_kib = [] {
    std::ifstream in("/proc/self/status");
    std::string word;
    while (in >> word && word != "VmRSS:") {
    }
    long kib = 0;
    in >> kib;
    return kib;
  };
  Served served;
  UniqueFd fd = served.connect();
  write_bytes(fd.get(), hello());
  read_bytes(fd.get(), 4);
  const auto round = [&](int first, int pairs) {
    std::string bytes;
    for (int i = first; i < first + pairs; ++i) {
      const std::string key = "/some/key/" + std::to_string(i);
      store_wire::set(bytes, key, key);
      store_wire::delete_key(bytes, key);
    }
    write_bytes(fd.get(), bytes);
    read_bytes(fd.get(), static_cast<std::size_t>(pairs) * 8);
  };
  constexpr int kBatch = 5000;
  for (int i = 0; i < 20; ++i) round(i * kBatch, kBatch);
  const long before = rss_kib();
  for (int i = 20; i < (kSanitized ? 40 : 220); ++i) round(i * kBatch, kBatch);
  if (!kSanitized) {
    EXPECT_LT(rss_kib() - before, 4096);
  }
  EXPECT_EQ(served.stats().stored_bytes, 0u);
  EXPECT_EQ(served.stats().keys, 0u);
}

TEST(StoreServer, ALongMultiSetInSmallPiecesIsLinear) {
  Served served;
  UniqueFd fd = served.connect();
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int i = 0; i < 20000; ++i) pairs.emplace_back("key" + std::to_string(i), "value" + std::to_string(i));
  std::string bytes = hello();
  store_wire::multi_set(bytes, pairs);
  store_wire::num_keys(bytes);
  for (std::size_t i = 0; i < bytes.size(); i += 1000) write_bytes(fd.get(), std::string_view(bytes).substr(i, 1000));
  EXPECT_EQ(hex(read_bytes(fd.get(), 12)), "07000000204e000000000000");
}

}  // namespace
}  // namespace ddprun::rendezvous
