#include "launcher/hosts/frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::launcher::hosts {
namespace {

Start a_start() {
  Start start;
  start.arguments = {"./ddprun", "--", "x", ""};
  start.environment = {"A=1", "B=two words\nand lines"};
  start.folder = "/home/u";
  start.input = true;
  start.silence = std::chrono::milliseconds(30'000);
  start.patience = std::chrono::milliseconds(40'000);
  return start;
}

TEST(Frames, ComeThroughByteByByte) {
  Hello hello;
  hello.program_version = "ddprun 1";
  hello.host = "c1";
  hello.identity = "boot net";
  hello.address = "fd00::1";
  hello.port = 21'000;
  const std::string bytes = "Welcome to c1!\n" + std::string(kMagic) + encode(hello) + encode(a_start()) +
                            encode(Signal{15}) + encode(Alive{}) + encode(Input{""}) +
                            encode(Output{2, std::string("a\0b", 3)}) + encode(End{75, "why", "{}"});
  FrameReader reader(true);
  std::vector<Message> messages;
  for (const char byte : bytes) {
    reader.feed(std::string_view(&byte, 1));
    while (true) {
      auto message = reader.next();
      ASSERT_TRUE(message) << message.error().message();
      if (!*message) break;
      messages.push_back(**message);
    }
  }
  EXPECT_EQ(reader.noise(), "Welcome to c1!\n");
  ASSERT_EQ(messages.size(), 7u);
  EXPECT_EQ(std::get<Hello>(messages[0]).address, "fd00::1");
  EXPECT_EQ(std::get<Hello>(messages[0]).port, 21'000);
  const auto& start = std::get<Start>(messages[1]);
  EXPECT_EQ(start.arguments, a_start().arguments);
  EXPECT_EQ(start.environment, a_start().environment);
  EXPECT_EQ(start.folder, "/home/u");
  EXPECT_TRUE(start.input);
  EXPECT_EQ(start.patience.count(), 40'000);
  EXPECT_EQ(std::get<Signal>(messages[2]).number, 15);
  EXPECT_TRUE(std::get<Input>(messages[4]).bytes.empty());
  EXPECT_EQ(std::get<Output>(messages[5]).bytes, std::string("a\0b", 3));
  EXPECT_EQ(std::get<End>(messages[6]).code, 75);
}

TEST(Frames, ALyingPeerIsNotBelieved) {
  const auto error_of = [](const std::string& bytes) {
    FrameReader reader(false);
    reader.feed(bytes);
    auto message = reader.next();
    return message ? std::string() : message.error().message();
  };
  EXPECT_THAT(error_of(std::string("\x06\xff\xff\xff\xff", 5)), testing::HasSubstr("more than any has"));
  EXPECT_THAT(error_of(std::string("\x63\x00\x00\x00\x00", 5)), testing::HasSubstr("cannot be read"));
  EXPECT_THAT(error_of(std::string("\x06\x01\x00\x00\x00\x03", 6)), testing::HasSubstr("cannot be read"));  // stream 3
  std::string cut = encode(a_start());
  cut[1] = static_cast<char>(cut.size() - 5 - 1);  // one byte too few
  EXPECT_THAT(error_of(cut), testing::HasSubstr("cannot be read"));
  std::string many = encode(a_start());
  many[5] = many[6] = many[7] = '\x7f';  // so many arguments
  EXPECT_THAT(error_of(many), testing::HasSubstr("cannot be read"));
}

TEST(Frames, AShellThatOnlyTalksIsGivenUp) {
  FrameReader reader(true);
  reader.feed(std::string(kMaxNoise, 'x'));
  EXPECT_TRUE(reader.next());
  reader.feed("x");
  EXPECT_FALSE(reader.next());
}

}  // namespace
}  // namespace ddprun::launcher::hosts
