#include "launcher/output/output_hub.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <thread>

#include "tests/support/proc_support.h"

namespace ddprun::launcher::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() {
    for (const int end : ends) {
      if (end >= 0) ::close(end);
    }
  }
  int reader() const { return ends[0]; }
  int writer() const { return ends[1]; }
  int ends[2] = {-1, -1};
};

struct Hub {
  explicit Hub(int console_stdout, milliseconds patience = seconds(30)) {
    std::signal(SIGPIPE, SIG_IGN);
    policy.console_stdout = console_stdout;
    policy.console_patience = patience;
    hub = std::make_unique<OutputHub>(
        io.get_executor(), policy, [](OutputHub::Ended) {}, [this](std::string text) { problems += text + "\n"; });
  }
  // A stream to the console (and to `file` if it is one); its other end.
  UniqueFd add(OutputHub::Target target, UniqueFd file = {}) {
    auto pair = make_pipe();
    EXPECT_TRUE(pair);
    OutputHub::Stream stream;
    stream.source = std::move(pair->ours);
    stream.file = std::move(file);
    stream.target = target;
    stream.name = "rank 3 standard output";
    id = hub->add(std::move(stream));
    return std::move(pair->theirs);
  }
  bool says(const std::string& part) {
    return eventually([&] {
      io.restart();
      io.poll();
      return problems.find(part) != std::string::npos;
    });
  }
  boost::asio::io_context io;
  OutputPolicy policy;
  std::string problems;
  std::unique_ptr<OutputHub> hub;
  int id = -1;
};

void write_all(int fd, std::size_t bytes) {
  const std::string block(4096, 'x');
  for (std::size_t done = 0; done < bytes; done += block.size()) {
    if (::write(fd, block.data(), block.size()) < 0) return;
  }
}

class EndlessWriter : public ::testing::TestWithParam<bool> {};

// A process that outlived its worker and was not found.
TEST_P(EndlessWriter, IsCutInTimeAndBytesAndNamed) {
  const TempFolder folder;
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  Hub h(null.get());
  const std::string path = folder / "log";
  UniqueFd file;
  if (GetParam()) file.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const UniqueFd theirs =
      h.add(GetParam() ? OutputHub::Target::none : OutputHub::Target::console_stdout, std::move(file));
  std::thread writer([&] { write_all(theirs.get(), ~std::size_t{0}); });
  h.hub->finish(h.id, milliseconds(300));
  EXPECT_TRUE(h.hub->wait_until_ended(kHardLimit));
  writer.join();  // nobody reads any more: EPIPE
  EXPECT_TRUE(h.says("a process that outlived the worker still writes to it"));
  struct stat status = {};
  if (GetParam()) {
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_LE(status.st_size, 20 << 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Output, EndlessWriter, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "ToAFile" : "ToTheConsole"; });

TEST(OutputHub, AConsoleThatTricklesDoesNotHoldUpTheEnd) {
  Pipe console;
  ::fcntl(console.writer(), F_SETPIPE_SZ, 4096);
  Hub h(console.writer(), milliseconds(100));
  UniqueFd theirs = h.add(OutputHub::Target::console_stdout);
  write_all(theirs.get(), 250'000);
  std::atomic<bool> done = false;
  std::thread reader([&] {  // always some progress, too little
    std::vector<char> bytes(4096);
    while (!done && ::read(console.reader(), bytes.data(), bytes.size()) > 0) {
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  theirs.reset();
  h.hub->finish(h.id, milliseconds(100));
  EXPECT_TRUE(h.hub->wait_until_ended(seconds(30)));
  EXPECT_TRUE(h.says("standard output took too little"));
  done = true;
  reader.join();
}

TEST(OutputHub, AConsoleThatWasGivenUpIsTakenOnAgain) {
  Pipe console;
  Hub h(console.writer(), milliseconds(50));
  UniqueFd theirs = h.add(OutputHub::Target::console_stdout);
  write_all(theirs.get(), 150'000);
  theirs.reset();
  h.hub->finish(h.id, milliseconds(50));
  EXPECT_TRUE(h.hub->wait_until_ended(kHardLimit));
  EXPECT_TRUE(h.says("are not shown there"));

  std::string shown;
  std::atomic<bool> done = false;
  std::thread reader([&] {
    std::vector<char> bytes(65536);
    while (!done) {
      pollfd ready{console.reader(), POLLIN, 0};
      if (::poll(&ready, 1, 50) <= 0) continue;
      const ssize_t n = ::read(console.reader(), bytes.data(), bytes.size());
      if (n > 0) shown.append(bytes.data(), static_cast<std::size_t>(n));
      if (shown.ends_with("the next attempt\n")) break;
    }
  });
  theirs = h.add(OutputHub::Target::console_stdout);
  EXPECT_TRUE(h.says("standard output takes output again"));
  EXPECT_EQ(::write(theirs.get(), "the next attempt\n", 17), 17);
  theirs.reset();
  h.hub->finish(h.id, milliseconds(50));
  EXPECT_TRUE(h.hub->wait_until_ended(kHardLimit));
  reader.join();
  EXPECT_THAT(shown, ::testing::EndsWith("x\nthe next attempt\n"));  // and not in the middle of the line that was cut
}

}  // namespace
}  // namespace ddprun::launcher::testing
