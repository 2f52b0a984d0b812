// Frames over a socket pair, plain and TLS, on a real io_context.
#include "common/secure_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "common/frame_io.h"
#include "common/task_group.h"
#include "common/tls_engine.h"
#include "common/wire.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr milliseconds kPatience{20'000};

std::string frame_of(std::string_view text) {
  WireWriter writer;
  writer.text(text);
  return std::move(writer).take();
}

class SecureStreamTest : public ::testing::Test {
 protected:
  SecureStreamTest() {
    asio::local::stream_protocol::socket a(io_), b(io_);
    asio::local::connect_pair(a, b);
    near_ = std::make_unique<SecureStream>(std::move(a));
    far_ = std::make_unique<SecureStream>(std::move(b));
  }

  // Runs both to their ends.
  void run(std::function<asio::awaitable<void>()> a, std::function<asio::awaitable<void>()> b) {
    TaskGroup group(io_.get_executor());
    group.spawn(a());
    group.spawn(b());
    io_.restart();
    io_.run_for(seconds(30));
    EXPECT_TRUE(group.empty());
  }

  static std::shared_ptr<const TlsContext> client(char key) {
    return *TlsContext::client({PeerRole::agent, "job7"}, {Key(std::string(32, key))});
  }
  static std::shared_ptr<const TlsContext> server(char key) {
    return *TlsContext::server(
        [key](const PeerIdentity&) -> Result<Secrets> { return Secrets{Key(std::string(32, key))}; });
  }

  asio::io_context io_{1};
  std::unique_ptr<SecureStream> near_, far_;
};

asio::awaitable<void> say(SecureStream& stream, std::shared_ptr<const TlsContext> tls, std::string bytes,
                          Result<void>& state) {
  if (tls) state = co_await stream.handshake(std::move(tls), kPatience);
  if (state && !bytes.empty()) state = co_await write_bytes(stream, std::move(bytes), kPatience);
}

asio::awaitable<void> hear(SecureStream& stream, std::shared_ptr<const TlsContext> tls,
                           std::vector<std::string>& frames, Result<void>& state) {
  if (tls) state = co_await stream.handshake(std::move(tls), kPatience);
  while (state) {
    auto frame = co_await read_frame(stream, 1 << 20, kPatience);
    if (!frame) {
      state = std::move(frame).error();
      co_return;
    }
    frames.push_back(std::move(*frame));
    if (frames.back() == "end") co_return;
  }
}

TEST_F(SecureStreamTest, FramesArriveWholePlainAndByTls) {
  const std::string large(300'000, 'x');
  const std::string bytes = frame_of("one") + frame_of(large) + frame_of("end");
  for (const bool tls : {false, true}) {
    std::vector<std::string> frames;
    Result<void> said, heard;
    run([&] { return say(*near_, tls ? client('k') : nullptr, bytes, said); },
        [&] { return hear(*far_, tls ? server('k') : nullptr, frames, heard); });
    ASSERT_TRUE(said) << said.error().message();
    ASSERT_TRUE(heard) << heard.error().message();
    EXPECT_EQ(frames, (std::vector<std::string>{"one", large, "end"})) << tls;
    EXPECT_FALSE(far_->has_unread());
  }
}

TEST_F(SecureStreamTest, WhatWasReadBeforeCounts) {
  const std::string bytes = frame_of("one") + frame_of("end");
  *far_ = SecureStream(std::move(far_->socket()), bytes.substr(0, 6));
  EXPECT_TRUE(far_->has_unread());
  std::vector<std::string> frames;
  Result<void> said, heard;
  run([&] { return say(*near_, nullptr, bytes.substr(6), said); }, [&] { return hear(*far_, nullptr, frames, heard); });
  EXPECT_EQ(frames, (std::vector<std::string>{"one", "end"}));
}

TEST_F(SecureStreamTest, AWrongKeyIsToldToBothAndDenied) {
  std::vector<std::string> frames;
  Result<void> said, heard;
  run([&] { return say(*near_, client('w'), frame_of("end"), said); },
      [&] { return hear(*far_, server('k'), frames, heard); });
  ASSERT_FALSE(said);
  ASSERT_FALSE(heard);
  EXPECT_TRUE(near_->denied());
  EXPECT_THAT(said.error().message(), HasSubstr("refused as agent:job7 with key"));
  EXPECT_THAT(said.error().message(), HasSubstr("here agent:job7 is known by key"));
  EXPECT_THAT(heard.error().message(), HasSubstr("agent:job7 came with key"));
}

TEST_F(SecureStreamTest, ASilentPeerIsGivenUp) {
  Result<void> state;
  run([&]() -> asio::awaitable<void> { state = co_await far_->handshake(server('k'), milliseconds(50)); },
      []() -> asio::awaitable<void> { co_return; });
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code(), Errc::timed_out);
  EXPECT_FALSE(far_->denied());
}

TEST_F(SecureStreamTest, APeerThatGoesIsNoDenial) {
  Result<void> state;
  far_->close();
  run([&]() -> asio::awaitable<void> { state = co_await near_->handshake(client('k'), kPatience); },
      []() -> asio::awaitable<void> { co_return; });
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code(), Errc::peer_closed);
  EXPECT_FALSE(near_->denied());
}

TEST_F(SecureStreamTest, BytesOneByOneGiveNobodyMoreTime) {
  // A frame promised and sent in drops: the limit is for all of it.
  Result<std::string> frame = std::string();
  bool over = false;
  run(
      [&]() -> asio::awaitable<void> {
        frame = co_await read_frame(*far_, 1 << 20, milliseconds(200));
        over = true;
      },
      [&]() -> asio::awaitable<void> {
        std::string head = frame_of(std::string(50'000, 'x')).substr(0, 4);
        auto sent = co_await write_bytes(*near_, std::move(head), kPatience);
        while (!over && sent) {
          std::string some(8'192, 'x');
          sent = co_await write_bytes(*near_, std::move(some), kPatience);
          asio::steady_timer pause(io_, milliseconds(60));
          co_await pause.async_wait(asio::use_awaitable);
        }
      });
  EXPECT_TRUE(over);
  ASSERT_FALSE(frame);
  EXPECT_EQ(frame.error().code(), Errc::timed_out);
}

TEST_F(SecureStreamTest, ClosingEndsTheReader) {
  Result<std::string> frame = std::string();
  run([&]() -> asio::awaitable<void> { frame = co_await read_frame(*far_, 100, milliseconds(0)); },
      [&]() -> asio::awaitable<void> {
        far_->close();
        co_return;
      });
  ASSERT_FALSE(frame);
  EXPECT_EQ(frame.error().code(), Errc::cancelled);
}

}  // namespace
}  // namespace ddprun
