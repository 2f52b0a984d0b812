// error, result, types, wire, exit_code, unique_fd, clock
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <set>

#include "common/clock.h"
#include "common/exit_code.h"
#include "common/result.h"
#include "common/system.h"
#include "common/types.h"
#include "common/unique_fd.h"
#include "common/wire.h"

namespace ddprun {
namespace {

TEST(Error, FromErrnoKeepsTheKindAndTheSystemsWords) {
  const Error error = Error::from_errno(ENOENT, "cannot open 'x'");
  EXPECT_EQ(error.code(), Errc::not_found);
  EXPECT_EQ(error.message(), "cannot open 'x': No such file or directory");
  EXPECT_EQ(Error::from_errno(ECONNREFUSED, "a").code(), Errc::refused);
  EXPECT_EQ(Error::from_errno(EPIPE, "a").code(), Errc::peer_closed);
  EXPECT_EQ(Error::from_errno(ECONNRESET, "a").code(), Errc::peer_closed);
  EXPECT_EQ(Error::from_errno(ETIMEDOUT, "a").code(), Errc::timed_out);
  EXPECT_EQ(Error::from_errno(ECANCELED, "a").code(), Errc::cancelled);
  EXPECT_EQ(Error::from_errno(EIO, "a").code(), Errc::system);
  EXPECT_EQ(Error::from_errno(ENOSYS, "a").code(), Errc::unsupported);
  EXPECT_EQ(Error::from_errno(EMFILE, "a").code(), Errc::exhausted);
}

TEST(Error, ContextGoesInFront) {
  const Error error = Error(Errc::refused, "nobody listens").with_context("joining 'job7'");
  EXPECT_EQ(error.message(), "joining 'job7': nobody listens");
  EXPECT_EQ(error.code(), Errc::refused);
}

TEST(Error, EveryKindHasWordsOfItsOwn) {
  std::set<std::string_view> words;
  for (const Errc code :
       {Errc::timed_out, Errc::peer_closed, Errc::refused, Errc::cancelled, Errc::malformed, Errc::invalid_argument,
        Errc::not_found, Errc::not_executable, Errc::unsupported, Errc::exhausted, Errc::system}) {
    EXPECT_TRUE(words.insert(to_string(code)).second);
    EXPECT_NE(to_string(code), "unknown");
  }
}

Result<std::unique_ptr<int>> make(bool good) {
  if (!good) return Error(Errc::system, "no");
  return std::make_unique<int>(7);
}

TEST(Result, HoldsAMoveOnlyValueOrAnError) {
  auto good = make(true);
  ASSERT_TRUE(good);
  const std::unique_ptr<int> taken = *std::move(good);
  EXPECT_EQ(*taken, 7);
  auto bad = make(false);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message(), "no");
  EXPECT_EQ(Result<int>(Error(Errc::system, "x")).value_or(3), 3);
}

TEST(Result, OfVoidIsGoodByDefault) {
  const Result<void> good;
  EXPECT_TRUE(good);
  const Result<void> bad = Error(Errc::refused, "no");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Errc::refused);
}

TEST(ResultDeathTest, TheWrongSideAborts) {
  const Result<int> bad = Error(Errc::system, "x");
  EXPECT_DEATH((void)bad.value(), "value\\(\\) of a failed Result");
  const Result<int> good = 1;
  EXPECT_DEATH((void)good.error(), "error\\(\\) of a good Result");
}

struct EndpointCase {
  const char* text;
  const char* host;
  int port;
  const char* shown;
};

TEST(Endpoint, ParsesWhatTorchrunUsersWrite) {
  const EndpointCase cases[] = {
      {"node1:29400", "node1", 29400, "node1:29400"},
      {"node1", "node1", 1234, "node1:1234"},
      {"10.0.0.1:1", "10.0.0.1", 1, "10.0.0.1:1"},
      {"[::1]:5", "::1", 5, "[::1]:5"},
      {"[fe80::1%eth0]", "fe80::1%eth0", 1234, "[fe80::1%eth0]:1234"},
      {"::1", "::1", 1234, "[::1]:1234"},
      // Without brackets: as torch's parse_rendezvous_endpoint, where it finds an IPv6 address before the last colon.
      {"fe80::38:1:29500", "fe80::38:1", 29500, "[fe80::38:1]:29500"},
      {"fe80::1%eth0:29500", "fe80::1%eth0", 29500, "[fe80::1%eth0]:29500"},
      {"2001:db8::5:8080", "2001:db8::5", 8080, "[2001:db8::5]:8080"},
      {"1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8", 9, "[1:2:3:4:5:6:7:8]:9"},
      {"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", 1234, "[1:2:3:4:5:6:7:8]:1234"},
      {"2001:db8::5", "2001:db8::5", 1234, "[2001:db8::5]:1234"},
      {"fe80::1", "fe80::1", 1234, "[fe80::1]:1234"},
      {"::ffff:10.0.0.1:29500", "::ffff:10.0.0.1", 29500, "[::ffff:10.0.0.1]:29500"},
      {"my_host-1.example:0", "my_host-1.example", 0, "my_host-1.example:0"},
  };
  for (const EndpointCase& c : cases) {
    const auto endpoint = Endpoint::parse(c.text, 1234);
    ASSERT_TRUE(endpoint) << c.text << ": " << endpoint.error().message();
    EXPECT_EQ(endpoint->host, c.host) << c.text;
    EXPECT_EQ(endpoint->port, c.port) << c.text;
    EXPECT_EQ(endpoint->to_string(), c.shown);
  }
}

TEST(Endpoint, RefusesTheRestAndNamesIt) {
  for (const char* text : {"", ":29400", "host:", "host:abc", "host:65536", "host:-1", "host: 1", "[::1", "[::1]x",
                           "[]:1", "ho st:1", "host/x:1", "host:1:", "a:b:c", "fe80::1:99999", "1::2::3:4"}) {
    const auto endpoint = Endpoint::parse(text, 1);
    ASSERT_FALSE(endpoint) << text;
    EXPECT_EQ(endpoint.error().code(), Errc::invalid_argument);
    EXPECT_NE(endpoint.error().message().find("'" + std::string(text) + "'"), std::string::npos)
        << endpoint.error().message();
  }
}

TEST(Loopback, IsKnownByItsText) {
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"", "10.0.0.1", "127.example.org", "::2", "::", "1::1", "::ffff:10.0.0.1", "host:1"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

TEST(System, RandomHexIsLongEnoughAndNeverTheSame) {
  EXPECT_EQ(random_hex(16).size(), 32u);
  EXPECT_EQ(random_hex(16).find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(random_hex(16), random_hex(16));
}

TEST(System, ShortHostNameIsTheFirstPartOfTheWhole) {
  EXPECT_FALSE(short_host_name().empty());
  EXPECT_EQ(short_host_name().find('.'), std::string::npos);
  EXPECT_TRUE(host_name().starts_with(short_host_name()));
}

TEST(System, AFileIsReplacedWholeOrStaysAsItWas) {
  const std::string path = ::testing::TempDir() + "/ddprun_beside_" + random_hex(8);
  {
    auto first = FileBeside::write(path, "one");
    ASSERT_TRUE(first) << first.error().message();
    EXPECT_EQ(read_small_file(path), "");
    EXPECT_EQ(read_small_file(first->path()), "one");
    ASSERT_TRUE(first->replace(path));
  }
  EXPECT_EQ(read_small_file(path), "one");
  std::string beside;
  {
    const auto second = FileBeside::write(path, "two");
    ASSERT_TRUE(second);
    beside = second->path();
  }
  EXPECT_EQ(read_small_file(path), "one");
  EXPECT_NE(::access(beside.c_str(), F_OK), 0);  // what was not renamed goes away
  ::unlink(path.c_str());
  const auto nowhere = FileBeside::write("/nonexistent/x", "three");
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().message(), "cannot write /nonexistent/x: No such file or directory");
}

TEST(Wire, RoundTripsEveryKindLittleEndian) {
  WireWriter writer;
  writer.u8(0xab);
  writer.u16(0x1234);
  writer.u32(0xdeadbeef);
  writer.u64(0x0102030405060708u);
  writer.i64(-2);
  writer.blob("blob");
  writer.text(std::string_view("a\0b", 3));
  writer.raw("rest");
  EXPECT_EQ(writer.bytes().substr(1, 2), std::string("\x34\x12"));
  WireReader reader(writer.bytes());
  EXPECT_EQ(reader.u8(), 0xab);
  EXPECT_EQ(reader.u16(), 0x1234);
  EXPECT_EQ(reader.u32(), 0xdeadbeefu);
  EXPECT_EQ(reader.u64(), 0x0102030405060708u);
  EXPECT_EQ(reader.i64(), -2);
  EXPECT_EQ(reader.blob(4), "blob");
  EXPECT_EQ(reader.text(3), std::string_view("a\0b", 3));
  EXPECT_EQ(reader.raw(4), "rest");
  EXPECT_TRUE(reader.finished());
}

TEST(Wire, AnyTruncationFailsForGood) {
  WireWriter writer;
  writer.u32(7);
  writer.blob("payload");
  writer.u16(1);
  const std::string whole = writer.bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    WireReader reader(std::string_view(whole).substr(0, size));
    (void)reader.u32();
    (void)reader.blob(100);
    (void)reader.u16();
    EXPECT_TRUE(reader.failed()) << size;
    EXPECT_EQ(reader.u8(), 0);
    EXPECT_EQ(reader.text(10), "");
    EXPECT_FALSE(reader.finished());
  }
}

TEST(Wire, LengthsAboveTheBoundOrTheBytesThatAreThereFail) {
  WireWriter writer;
  writer.u64(UINT64_MAX);
  writer.raw("xx");
  WireReader huge(writer.bytes());
  EXPECT_EQ(huge.blob(UINT64_MAX), "");
  EXPECT_TRUE(huge.failed());
  WireWriter small;
  small.text("12345");
  WireReader bounded(small.bytes());
  EXPECT_EQ(bounded.text(4), "");
  EXPECT_TRUE(bounded.failed());
}

TEST(Wire, PatchOverwritesALength) {
  WireWriter writer;
  writer.u32(0);
  writer.raw("abc");
  writer.patch_u32(0, 3);
  WireReader reader(writer.bytes());
  EXPECT_EQ(reader.text(3), "abc");
}

TEST(UniqueFd, ClosesOnceAndMoves) {
  int raw = -1;
  {
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    raw = fd.get();
    ASSERT_TRUE(fd);
    UniqueFd other(std::move(fd));
    EXPECT_FALSE(fd);  // NOLINT: looked at on purpose
    EXPECT_EQ(other.get(), raw);
    EXPECT_NE(::fcntl(raw, F_GETFD), -1);
  }
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1);
}

TEST(ExitCode, TableHasEachCodeOnce) {
  std::set<int> codes;
  for (const ExitCodeEntry& entry : kExitCodes) {
    EXPECT_TRUE(codes.insert(entry.code).second) << entry.code;
    EXPECT_FALSE(entry.meaning.empty());
  }
}

TEST(ManualClock, MovesByHandOnly) {
  ManualClock clock;
  const TimePoint before = clock.now();
  EXPECT_EQ(clock.now(), before);
  clock.advance(std::chrono::seconds(3));
  EXPECT_EQ(clock.now() - before, std::chrono::seconds(3));
}

}  // namespace
}  // namespace ddprun
