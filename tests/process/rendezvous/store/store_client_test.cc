#include "common/store_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>

#include "common/store_protocol.h"
#include "common/tcp.h"
#include "tests/process/rendezvous/store/served.h"
#include "tests/support/store_transcript.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::hex;
using testing::ElementsAre;
using testing::HasSubstr;

TimePoint in(std::chrono::milliseconds d) { return SteadyClock::now() + d; }
TimePoint hard_limit() { return in(60s); }

Listener listen_on(std::uint16_t port = 0) {
  ListenOptions options;
  options.scope = ListenScope::loopback;
  options.port = port;
  auto listener = tcp_listen(options);
  EXPECT_TRUE(listener) << listener.error().message();
  return std::move(*listener);
}

UniqueFd accept_one(const Listener& listener) {
  return UniqueFd(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

StoreClientOptions options_for(std::uint16_t port) {
  StoreClientOptions options;
  options.endpoint = {"127.0.0.1", port};
  return options;
}

// Plays the server's part of a recorded conversation: compares each byte that comes with what torch's client sent
// (but for the nonce of the PING, which is echoed).
void play_server(const Listener& listener, const test::Transcript& transcript) {
  std::map<int, UniqueFd> connections;
  for (const auto& step : transcript.steps) {
    UniqueFd& fd = connections[step.connection];
    if (!fd) fd = accept_one(listener);
    if (step.from_client && step.eof) continue;
    if (step.eof) {
      fd.reset();
      return;
    }
    if (!step.from_client) {
      std::string bytes = step.bytes;
      if (bytes.size() == 4) {
        const auto nonce = static_cast<std::uint32_t>(::getpid());
        bytes.clear();
        store_wire::u32(bytes, nonce);
      }
      ASSERT_TRUE(write_all(fd.get(), bytes, hard_limit()));
      continue;
    }
    std::string got(step.bytes.size(), '\0');
    auto read = read_exact(fd.get(), got.data(), got.size(), hard_limit());
    ASSERT_TRUE(read) << transcript.name << " line " << step.line << ": " << read.error().message();
    if (step.bytes.size() == 5 && step.bytes[0] == static_cast<char>(StoreOp::ping)) {
      EXPECT_EQ(got[0], step.bytes[0]);
      continue;
    }
    EXPECT_EQ(hex(got), hex(step.bytes)) << transcript.name << " line " << step.line;
  }
  // Nothing else was sent.
  for (auto& [number, fd] : connections) {
    char byte = 0;
    auto more = read_exact(fd.get(), &byte, 1, hard_limit());
    EXPECT_FALSE(more) << transcript.name << ": one byte too many on " << number;
  }
}

struct Conversation {
  std::string name;
  std::function<void(StoreClient&)> calls;
};

TEST(StoreClient, SpeaksTheBytesOfTorchsClient) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  using Keys = std::vector<std::string>;
  const std::string nul("\xd0\xba\xd0\xbb\xd1\x8e\xd1\x87\x00k", 10);
  const std::string nul_value("\xd0\xb7\xd0\xbd\xd0\xb0\xd1\x87\xd0\xb5\xd0\xbd\xd0\xb8\xd0\xb5\x00v", 18);
  const std::vector<Conversation> all{
      {"connect", [](StoreClient&) {}},
      {"set", [](StoreClient& s) { EXPECT_TRUE(s.set("k", "v")); }},
      {"set-empty-value",
       [](StoreClient& s) {
         EXPECT_TRUE(s.set("k", ""));
         EXPECT_TRUE(*s.check("k"));
       }},
      {"set-empty-key",
       [](StoreClient& s) {
         EXPECT_TRUE(s.set("", "v"));
         EXPECT_EQ(*s.get(""), "v");
       }},
      {"set-4096-bytes",
       [](StoreClient& s) {
         EXPECT_TRUE(s.set("big", std::string(4096, 'x')));
         EXPECT_EQ(s.get("big")->size(), 4096u);
       }},
      {"set-utf8-and-nul",
       [&](StoreClient& s) {
         EXPECT_TRUE(s.set(nul, nul_value));
         EXPECT_EQ(*s.get(nul), nul_value);
       }},
      {"get",
       [](StoreClient& s) {
         EXPECT_TRUE(s.set("k", "value"));
         EXPECT_EQ(*s.get("k"), "value");
       }},
      {"add",
       [](StoreClient& s) {
         EXPECT_EQ(*s.add("n", 5), 5);
         EXPECT_EQ(*s.add("n", -7), -2);
         EXPECT_EQ(*s.add("n", 0), -2);
         EXPECT_EQ(*s.get("n"), "-2");
       }},
      {"compare-set-missing-expect-empty",
       [](StoreClient& s) {
         EXPECT_EQ(*s.compare_set("k", "", "new"), "new");
         EXPECT_EQ(*s.get("k"), "new");
       }},
      {"compare-set-missing-expect-value",
       [](StoreClient& s) {
         EXPECT_EQ(*s.compare_set("k", "old", "new"), "old");
         EXPECT_FALSE(*s.check("k"));
       }},
      {"compare-set-mismatch",
       [](StoreClient& s) {
         EXPECT_TRUE(s.set("k", "current"));
         EXPECT_EQ(*s.compare_set("k", "old", "new"), "current");
         EXPECT_EQ(*s.get("k"), "current");
       }},
      {"check",
       [](StoreClient& s) {
         EXPECT_TRUE(s.set("k", "v"));
         EXPECT_TRUE(*s.check(Keys{"k"}));
         EXPECT_FALSE(*s.check(Keys{"k", "missing"}));
         EXPECT_FALSE(*s.check(Keys{"missing"}));
         EXPECT_TRUE(*s.check(Keys{}));
       }},
      {"wait-present",
       [](StoreClient& s) {
         EXPECT_TRUE(s.multi_set(Pairs{{"a", "1"}, {"b", "2"}}));
         EXPECT_TRUE(s.wait(Keys{"a", "b"}, hard_limit()));
         EXPECT_TRUE(s.wait(Keys{}, hard_limit()));
       }},
      {"delete-key",
       [](StoreClient& s) {
         EXPECT_TRUE(s.set("k", "v"));
         EXPECT_TRUE(*s.delete_key("k"));
         EXPECT_FALSE(*s.delete_key("k"));
         EXPECT_FALSE(*s.check("k"));
       }},
      {"append",
       [](StoreClient& s) {
         EXPECT_TRUE(s.append("k", "ab"));
         EXPECT_TRUE(s.append("k", "cd"));
         EXPECT_EQ(*s.get("k"), "abcd");
       }},
      {"multi-get",
       [](StoreClient& s) {
         EXPECT_TRUE(s.set("a", "1"));
         EXPECT_TRUE(s.set("b", "22"));
         EXPECT_THAT(*s.multi_get(Keys{"a", "b"}, hard_limit()), ElementsAre("1", "22"));
         EXPECT_THAT(*s.multi_get(Keys{}, hard_limit()), ElementsAre());
         EXPECT_EQ(*s.num_keys(), 2);
       }},
      {"multi-set",
       [](StoreClient& s) {
         EXPECT_TRUE(s.multi_set(Pairs{{"a", "1"}, {"b", "22"}}));
         EXPECT_TRUE(s.multi_set(Pairs{}));
         EXPECT_THAT(*s.multi_get(Keys{"b", "a"}, hard_limit()), ElementsAre("22", "1"));
       }},
      {"queue-pop-empty",
       [](StoreClient& s) {
         EXPECT_EQ(*s.queue_try_pop("q"), std::nullopt);
         EXPECT_TRUE(s.queue_push("q", ""));
         EXPECT_EQ(*s.queue_try_pop("q"), "");
       }},
      {"add-non-numeric",
       [](StoreClient& s) {
         EXPECT_TRUE(s.set("n", "abc"));
         auto sum = s.add("n", 1);
         ASSERT_FALSE(sum);
         EXPECT_EQ(sum.error().code(), Errc::peer_closed);
       }},
  };
  const auto transcripts = test::load_transcripts("transcripts.txt");
  for (const Conversation& conversation : all) {
    SCOPED_TRACE(conversation.name);
    Listener listener = listen_on();
    const auto& transcript = test::find_transcript(transcripts, conversation.name);
    std::thread server([&] { play_server(listener, transcript); });
    {
      auto client = StoreClient::connect(options_for(listener.port));
      ASSERT_TRUE(client) << client.error().message();
      conversation.calls(*client);
    }
    server.join();
  }
}

// Answers VALIDATE + PING, then hands the connection to `rest`.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int fd, int connection)> rest, int connections = 1)
      : listener_(listen_on()), thread_([this, rest, connections] {
          for (int i = 0; i < connections; ++i) {
            UniqueFd fd = accept_one(listener_);
            char hello[10];
            if (!read_exact(fd.get(), hello, sizeof hello, hard_limit())) continue;
            if (!write_all(fd.get(), std::string_view(hello + 6, 4), hard_limit())) continue;
            rest(fd.get(), i);
          }
        }) {}
  ~FakeServer() { thread_.join(); }
  std::uint16_t port() const { return listener_.port; }

 private:
  Listener listener_;
  std::thread thread_;
};

void until_closed(int fd) {
  char byte;
  while (read_exact(fd, &byte, 1, hard_limit())) {
  }
}

TEST(StoreClient, AServerThatFallsSilentIsATimeoutThatSaysSo) {
  FakeServer server([](int fd, int) { until_closed(fd); });
  StoreClientOptions options = options_for(server.port());
  options.reply_timeout = 50ms;
  auto client = StoreClient::connect(options);
  ASSERT_TRUE(client);
  auto sum = client->add("n", 1);
  ASSERT_FALSE(sum);
  EXPECT_EQ(sum.error().code(), Errc::timed_out);
  EXPECT_THAT(sum.error().message(), HasSubstr("store add at 127.0.0.1:"));
}

TEST(StoreClient, AServerThatAcceptsAndSaysNothingIsATimeoutOfConnect) {
  Listener listener = listen_on();
  StoreClientOptions options = options_for(listener.port);
  options.connect_timeout = 100ms;
  auto client = StoreClient::connect(options);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), Errc::timed_out);
  EXPECT_THAT(client.error().message(), HasSubstr("connecting to the store at 127.0.0.1:"));
}

TEST(StoreClient, ReadsAgainOnANewConnection) {
  FakeServer server(
      [](int fd, int connection) {
        char op = 0;
        if (!read_exact(fd, &op, 1, hard_limit())) return;
        if (connection == 0) return;
        EXPECT_TRUE(write_all(fd, std::string_view("\0", 1), hard_limit()));
        until_closed(fd);
      },
      2);
  auto client = StoreClient::connect(options_for(server.port()));
  ASSERT_TRUE(client);
  auto there = client->check("k");
  ASSERT_TRUE(there) << there.error().message();
  EXPECT_TRUE(*there);
}

TEST(StoreClient, AnAddWithoutAnswerIsNotSentAgain) {
  std::atomic<int> adds{0};
  FakeServer server(
      [&](int fd, int connection) {
        char op = 0;
        if (!read_exact(fd, &op, 1, hard_limit())) return;
        if (op == static_cast<char>(StoreOp::add)) ++adds;
        if (connection == 1) until_closed(fd);
      },
      2);
  auto client = StoreClient::connect(options_for(server.port()));
  ASSERT_TRUE(client);
  auto sum = client->add("n", 1);
  ASSERT_FALSE(sum);
  EXPECT_EQ(sum.error().code(), Errc::peer_closed);
  // The next call makes the connection anew.
  EXPECT_TRUE(client->set("k", "v"));
  EXPECT_EQ(adds.load(), 1);
}

TEST(StoreClient, WithoutReconnectALostServerIsAnError) {
  FakeServer server([](int, int) {});
  StoreClientOptions options = options_for(server.port());
  options.reconnect = false;
  auto client = StoreClient::connect(options);
  ASSERT_TRUE(client);
  auto there = client->check("k");
  ASSERT_FALSE(there);
  EXPECT_EQ(there.error().code(), Errc::peer_closed);
}

TEST(StoreClient, AllCallsAgainstOurServer) {
  test::Served served;
  const std::string command = DDPRUN_BINARY_DIR "/tests/store_client_calls 127.0.0.1 " + std::to_string(served.port());
  FILE* calls = ::popen(command.c_str(), "r");
  ASSERT_NE(calls, nullptr);
  std::string said;
  char line[256];
  while (std::fgets(line, sizeof line, calls) != nullptr) said += line;
  EXPECT_EQ(::pclose(calls), 0);
  EXPECT_EQ(said, "all calls ok\n");
}

TEST(StoreClient, AnswersThatAreNoneAreNamed) {
  FakeServer server([](int fd, int) {
    const std::string nonsense(64, '\x55');
    char request[1];
    if (!read_exact(fd, request, 1, hard_limit())) return;
    EXPECT_TRUE(write_all(fd, nonsense, hard_limit()));
    until_closed(fd);
  });
  auto client = StoreClient::connect(options_for(server.port()));
  ASSERT_TRUE(client);
  auto there = client->check("k");
  ASSERT_FALSE(there);
  EXPECT_EQ(there.error().code(), Errc::malformed);
}

}  // namespace
}  // namespace ddprun
