#include "rendezvous/store/store_session.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/store_transcript.h"

namespace ddprun::rendezvous {
namespace {

using test::hex;
using test::Transcript;

// A store and its sessions without sockets: what goes in comes out at once.
class World {
 public:
  explicit World(StoreSessionLimits limits = {}) : limits_(limits) {}

  void send(int connection, std::string_view bytes) {
    Peer& peer = at(connection);
    if (peer.closed) return;
    Store::Wakes wakes;
    auto verdict = peer.session->feed(bytes, 0, peer.out, wakes);
    for (std::string_view tail; !(tail = peer.session->take_tail()).empty();) {
      peer.out += tail;
      verdict = peer.session->feed({}, 0, peer.out, wakes);
    }
    for (const ClientId id : wakes) at(static_cast<int>(id)).out.push_back(kStoreStopWaiting);
    if (verdict != StoreSession::Verdict::ok) close(connection);
    peer.verdict = verdict;
  }
  void close(int connection) {
    at(connection).closed = true;
    store_.forget(static_cast<ClientId>(connection));
  }
  std::string take(int connection) { return std::exchange(at(connection).out, {}); }
  bool closed(int connection) { return at(connection).closed; }
  StoreSession::Verdict verdict(int connection) { return at(connection).verdict; }
  StoreSession& session(int connection) { return *at(connection).session; }
  Store& store() { return store_; }

 private:
  struct Peer {
    std::unique_ptr<StoreSession> session;
    std::string out;
    bool closed = false;
    StoreSession::Verdict verdict = StoreSession::Verdict::ok;
  };
  Peer& at(int connection) {
    Peer& peer = peers_[connection];
    if (!peer.session) {
      peer.session = std::make_unique<StoreSession>(store_, static_cast<ClientId>(connection), limits_, counts_);
    }
    return peer;
  }

  StoreSessionLimits limits_;
  Store store_;
  std::array<std::uint64_t, kStoreOpCount> counts_{};
  std::map<int, Peer> peers_;
};

// Plays the client's part, `piece` bytes at a time, and compares what comes back, in order, per connection.
void replay(const Transcript& transcript, std::size_t piece) {
  SCOPED_TRACE(transcript.name + " in pieces of " + std::to_string(piece));
  World world;
  std::map<int, std::string> expected;
  std::map<int, std::string> received;
  for (const auto& step : transcript.steps) {
    if (step.from_client && step.eof) {
      world.close(step.connection);
    } else if (step.from_client) {
      for (std::size_t i = 0; i < step.bytes.size(); i += piece) {
        world.send(step.connection, std::string_view(step.bytes).substr(i, piece));
      }
    } else if (step.eof) {
      EXPECT_TRUE(world.closed(step.connection)) << "line " << step.line << ": should be closed";
    } else if (step.any_order) {
      received[step.connection] += world.take(step.connection);
      EXPECT_EQ(test::sorted_key_list(received[step.connection]), test::sorted_key_list(step.bytes))
          << "line " << step.line;
      received[step.connection].clear();
    } else {
      std::string& have = received[step.connection];
      have += world.take(step.connection);
      ASSERT_EQ(hex(have.substr(0, step.bytes.size())), hex(step.bytes)) << "line " << step.line;
      have.erase(0, step.bytes.size());
    }
  }
  for (auto& [connection, rest] : received) {
    EXPECT_EQ(hex(rest + world.take(connection)), "") << "unasked bytes on " << connection;
  }
}

TEST(StoreSession, AnswersAsRecordedInAnySegmentation) {
  for (const char* file : {"transcripts.txt", "ours.txt"}) {
    for (const Transcript& transcript : test::load_transcripts(file)) {
      for (const std::size_t piece : {std::size_t{1} << 20, std::size_t{1}, std::size_t{3}, std::size_t{7}}) {
        replay(transcript, piece);
      }
    }
  }
}

std::string hello() {
  std::string bytes;
  store_wire::validate(bytes);
  return bytes;
}

TEST(StoreSession, NamesWhatAStrangerSent) {
  const std::pair<std::string, std::string> table[] = {
      {"GET / HTTP/1.0\r\n", "an HTTP request"},
      {std::string("\x16\x03\x01\x02\x00", 5), "a TLS hello"},
      {"SSH-2.0-scan\r\n", "an SSH banner"},
      {"hello there", "text"},
      {std::string("\xff\xff\xff", 3), "bytes that are no VALIDATE"},
      {std::string(64, '\0'), "bytes that are no VALIDATE"},
  };
  for (const auto& [bytes, name] : table) {
    World world;
    world.send(0, bytes);
    EXPECT_EQ(world.verdict(0), StoreSession::Verdict::garbage) << name;
    EXPECT_EQ(world.session(0).why(), name);
  }
  World world;
  world.send(0, test::from_hex("030500000000000000696e69742f0100000000000000"));
  EXPECT_EQ(world.verdict(0), StoreSession::Verdict::too_old);
  EXPECT_NE(world.session(0).why().find("no VALIDATE"), std::string_view::npos);
}

TEST(StoreSession, StopsHandlingWhenAnswersPileUpAndGoesOnLater) {
  StoreSessionLimits limits;
  limits.max_unread_bytes = 1000;
  World world(limits);
  std::string bytes = hello();
  store_wire::set(bytes, "k", std::string(600, 'x'));
  for (int i = 0; i < 10; ++i) store_wire::get(bytes, "k");
  world.send(0, bytes);
  EXPECT_TRUE(world.session(0).paused());
  std::string all = world.take(0);
  EXPECT_LT(all.size(), 2000u);
  while (world.session(0).paused()) {
    world.send(0, {});
    all += world.take(0);
  }
  EXPECT_EQ(all.size(), 10u * 608u);
}

TEST(StoreSession, LongValuesStandInTheStoreAndStopTheSession) {
  World world;
  const std::string value(100000, 'x');
  std::string bytes = hello();
  store_wire::set(bytes, "k", value);
  store_wire::get(bytes, "k");
  store_wire::set(bytes, "k", "short");
  store_wire::get(bytes, "k");
  world.send(0, bytes);
  std::string expected;
  store_wire::blob(expected, value);
  store_wire::blob(expected, "short");
  EXPECT_EQ(world.take(0), expected);
}

TEST(StoreSession, AFullStoreRefusesAndStaysReadable) {
  StoreSessionLimits limits;
  limits.max_store_bytes = 10000;
  World world(limits);
  std::string bytes = hello();
  store_wire::set(bytes, "a", std::string(4000, 'x'));
  world.send(0, bytes);
  EXPECT_FALSE(world.closed(0));
  std::string more = hello();
  store_wire::set(more, "b", std::string(6000, 'x'));
  world.send(1, more);
  EXPECT_EQ(world.verdict(1), StoreSession::Verdict::memory);
  std::string get;
  store_wire::get(get, "a");
  world.send(0, get);
  EXPECT_EQ(world.take(0).size(), 4008u);
  EXPECT_EQ(world.store().num_keys(), 1u);
}

TEST(StoreSession, KeepsNoMemoryOfALongRequest) {
  World world;
  std::string bytes = hello();
  store_wire::set(bytes, "k", std::string(3 << 20, 'x'));
  for (std::size_t i = 0; i < bytes.size(); i += 100000) world.send(0, std::string_view(bytes).substr(i, 100000));
  EXPECT_EQ(world.store().get("k").size(), std::size_t{3} << 20);
  EXPECT_LT(world.session(0).buffered(), 5000u);
}

TEST(StoreDecoder, ListsComeWholeAndAreBounded) {
  StoreDecoderLimits limits;
  limits.max_keys = 4;
  limits.max_list_bytes = 60;
  const auto first = [&limits](std::string_view bytes) {
    StoreDecoder decoder(limits);
    StoreRequest request;
    std::size_t consumed = 0;
    return decoder.next(bytes, consumed, request);
  };
  const auto list = [](std::vector<std::string> keys) {
    std::string bytes;
    store_wire::keys(bytes, StoreOp::wait, keys);
    return bytes;
  };
  EXPECT_EQ(first(list({"a", "b"})), StoreDecoder::Step::request);
  EXPECT_EQ(first(list({"a", "b", "c", "d", "e"})), StoreDecoder::Step::malformed);
  EXPECT_EQ(first(list({"aaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbb"})), StoreDecoder::Step::malformed);
  const std::string whole = list({"key one", "", "three"});
  for (std::size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(first(std::string_view(whole).substr(0, n)), StoreDecoder::Step::need_more) << n;
  }
}

TEST(StoreDecoder, NeverAsksForLessThanItNeedsNorMoreThanThereWillBe) {
  std::string bytes;
  store_wire::compare_set(bytes, "key", "expected", "desired");
  const std::size_t first_size = bytes.size();
  const std::vector<std::string> keys{"a", "bb", "ccc"};
  store_wire::keys(bytes, StoreOp::wait, keys);
  StoreDecoder decoder;
  StoreRequest request;
  std::size_t consumed = 0;
  std::size_t start = 0;
  std::size_t requests = 0;
  for (std::size_t end = 0; end <= bytes.size(); ++end) {
    const std::string_view there = std::string_view(bytes).substr(start, end - start);
    EXPECT_LE(start + decoder.needed(), requests == 0 ? first_size : bytes.size() + 1);
    if (decoder.next(there, consumed, request) == StoreDecoder::Step::request) {
      ++requests;
      start += consumed;
    }
  }
  EXPECT_EQ(requests, 2u);
  EXPECT_EQ(start, bytes.size());
  ASSERT_EQ(request.keys.size(), 3u);
  EXPECT_EQ(request.keys[2], "ccc");
}

}  // namespace
}  // namespace ddprun::rendezvous
