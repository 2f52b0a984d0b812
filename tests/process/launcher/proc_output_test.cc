#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <thread>

#include "common/task_group.h"
#include "launcher/process/kill_tree.h"
#include "tests/support/proc_support.h"

namespace asio = boost::asio;

namespace ddprun::launcher::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::shared_ptr<LogTree> open_logs(Harness& harness, const std::string& name = "logs") {
  auto logs = LogTree::open(harness.folder / name, "job", nullptr);
  EXPECT_TRUE(logs) << (logs ? "" : logs.error().message());
  return logs ? *logs : nullptr;
}

std::string log_of(const Harness& harness, const std::string& below_attempt) {
  return read_file(harness.options.logs->root() + "/attempt_0/" + below_attempt);
}

TEST(Output, TeeGivesWholeLinesWithPrefixAndExactFiles) {
  Harness harness;
  harness.options.logs = open_logs(harness);
  harness.options.output.tee.all = 3;
  auto group = harness.make();
  const std::string script = R"(printf 'a\377\000b\r\n'; printf 'x'; sleep 0.2; printf 'y\nlast'; printf 'e\n' >&2)";
  ASSERT_TRUE(group->start(harness.workers(script, 2)));
  finish(harness, *group);
  std::map<std::string, int> lines;
  std::istringstream console(harness.console_out());
  for (std::string line; std::getline(console, line);) ++lines[line];
  const std::map<std::string, int> expected{{std::string("[default0]:a\377\0b\r", 16), 1},
                                            {std::string("[default1]:a\377\0b\r", 16), 1},
                                            {"[default0]:xy", 1},
                                            {"[default1]:xy", 1},
                                            {"[default0]:last", 1},
                                            {"[default1]:last", 1}};
  EXPECT_EQ(lines, expected);
  EXPECT_EQ(log_of(harness, "1/stdout.log"), std::string("a\377\0b\r\nxy\nlast", 13));
  EXPECT_EQ(log_of(harness, "0/stderr.log"), "e\n");
}

TEST(Output, RedirectsByRankAndConsoleFilter) {
  Harness harness;
  harness.options.logs = open_logs(harness);
  harness.options.output.redirects.ranks = {{0, 1}, {11, 3}};
  harness.options.output.console_ranks = std::set<std::int64_t>{0, 11, 3};
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("echo out$RANK; echo err$RANK >&2", 12)));
  finish(harness, *group);
  EXPECT_EQ(log_of(harness, "0/stdout.log"), "out0\n");
  EXPECT_EQ(log_of(harness, "11/stdout.log"), "out11\n");
  EXPECT_EQ(log_of(harness, "11/stderr.log"), "err11\n");
  EXPECT_EQ(harness.console_out(), "out3\n");
  EXPECT_THAT(harness.console_err(), ::testing::AnyOf("err0\nerr3\n", "err3\nerr0\n"));
  // A rank that is not shown still has its last words.
  EXPECT_EQ(group->group().evidence(LocalRank(5)).last_lines, std::vector<std::string>{"err5"});
  EXPECT_EQ(group->group().evidence(LocalRank(11)).last_lines, std::vector<std::string>{"err11"});
  EXPECT_EQ(group->group().evidence(LocalRank(11)).log_paths.size(), 2u);
}

TEST(Output, FilteredLinesOfAllRanks) {
  Harness harness;
  harness.options.logs = open_logs(harness);
  harness.options.output.tee.all = 1;
  harness.options.output.duplicate_stdout_filters = {"loss", "=9"};
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("echo step=1; echo loss=0.$RANK; echo step=9; printf 'loss end'", 2)));
  finish(harness, *group);
  std::multiset<std::string> lines;
  std::istringstream text(log_of(harness, "filtered_stdout.log"));
  for (std::string line; std::getline(text, line);) lines.insert(line);
  EXPECT_EQ(lines, (std::multiset<std::string>{"[default0]:loss=0.0", "[default0]:step=9", "[default0]:loss end",
                                               "[default1]:loss=0.1", "[default1]:step=9", "[default1]:loss end"}));
}

TEST(Output, LogsAreRotated) {
  Harness harness;
  harness.options.logs = open_logs(harness);
  harness.options.output.redirects.all = 1;
  harness.options.output.log_max_size_bytes = 1000;
  harness.options.output.log_keep = 2;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("for i in 1 2 3 4 5 6; do printf '%0500d\\n' $i; sleep 0.05; done", 1)));
  finish(harness, *group);
  const auto files = files_below(harness.options.logs->root() + "/attempt_0/0");
  EXPECT_EQ(files, (std::vector<std::string>{"stdout.log", "stdout.log.1", "stdout.log.2"}));
  EXPECT_LE(log_of(harness, "0/stdout.log.1").size(), 1002u);
  EXPECT_EQ(log_of(harness, "0/stdout.log").back(), '\n');
  EXPECT_THAT(log_of(harness, "0/stdout.log"), ::testing::EndsWith("6\n"));
}

TEST(Output, NothingIsLostAndOrderIsKept) {
  Harness harness;
  harness.options.logs = open_logs(harness);
  harness.options.output.tee.all = 1;
  constexpr int kRanks = 8, kLines = 40000;
  auto group = harness.make();
  const std::string script = "awk -v r=$RANK 'BEGIN{for(i=0;i<" + std::to_string(kLines) +
                             ";i++) printf \"%d %d abcdefghijklmnopqrstuvwxyz abcdefghijklmnopqrstuvwxyz\\n\", r, i}'";
  ASSERT_TRUE(group->start(harness.workers(script, kRanks)));
  finish(harness, *group);
  std::vector<int> next(kRanks, 0);
  std::istringstream console(harness.console_out());
  int bad = 0;
  for (std::string line; std::getline(console, line);) {
    int prefix = -1, rank = -1, number = -1;
    char tail[64] = {};
    if (std::sscanf(line.c_str(), "[default%d]:%d %d %63[a-z ]", &prefix, &rank, &number, tail) != 4 ||
        prefix != rank || number != next.at(static_cast<std::size_t>(rank)) || std::string(tail).size() != 53) {
      if (++bad < 4) ADD_FAILURE() << line;
      continue;
    }
    ++next[static_cast<std::size_t>(rank)];
  }
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(next, std::vector<int>(kRanks, kLines));
}

// A pipe as the console that nobody reads until told.
struct StuckConsole {
  StuckConsole() { EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0); }
  ~StuckConsole() {
    if (ends[0] >= 0) ::close(ends[0]);
    ::close(ends[1]);
  }
  int ends[2] = {-1, -1};
};

TEST(Output, StuckConsoleHoldsUpNoFile) {
  Harness harness;
  StuckConsole console;
  ::close(harness.options.output.console_stdout);
  harness.options.output.console_stdout = ::dup(console.ends[1]);
  harness.options.output.tee.all = 1;
  harness.options.logs = open_logs(harness);
  auto group = harness.make();
  constexpr std::size_t kBytes = 20'000'000;
  ASSERT_TRUE(group->start(harness.workers("yes 0123456789abcdefghijklmnopqrs | head -c 20000000", 2)));
  const std::string base = harness.options.logs->root() + "/attempt_0/";
  const auto size_of = [](const std::string& path) {
    struct stat status = {};
    return ::stat(path.c_str(), &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
  };
  EXPECT_TRUE(
      eventually([&] { return size_of(base + "0/stdout.log") == kBytes && size_of(base + "1/stdout.log") == kBytes; }));
  // Now somebody reads: all of it comes, from the files, in order.
  std::size_t seen = 0;
  std::thread reader([&] {
    std::vector<char> buffer(1 << 16);
    const std::size_t total = 2 * kBytes + 2 * (kBytes / 30 + 1) * 11 - 20;
    while (seen < total) {
      const ssize_t n = ::read(console.ends[0], buffer.data(), buffer.size());
      if (n <= 0) break;
      seen += static_cast<std::size_t>(n);
    }
  });
  const auto exits = finish(harness, *group);
  group.reset();
  ::close(harness.options.output.console_stdout);
  ::close(console.ends[1]);
  console.ends[1] = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  harness.options.output.console_stdout = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  reader.join();
  EXPECT_EQ(exits.size(), 2u);
  // Lines of 30 bytes; the last one of each is cut and gets a newline.
  const std::size_t lines = (kBytes + 29) / 30;
  EXPECT_EQ(seen, 2 * (kBytes + lines * 11 + (kBytes % 30 == 0 ? 0 : 1)));
}

TEST(Output, DeadConsoleDoesNotEndTheJob) {
  Harness harness;
  struct sigaction ignore = {}, before = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);  // as main() does
  StuckConsole console;
  ::close(console.ends[0]);
  console.ends[0] = -1;
  ::close(harness.options.output.console_stdout);
  harness.options.output.console_stdout = ::dup(console.ends[1]);
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("yes 0123456789 | head -c 2000000; echo done >&2", 2)));
  const auto exits = finish(harness, *group);
  ::sigaction(SIGPIPE, &before, nullptr);
  for (const auto& exit : exits) EXPECT_TRUE(exit.status.success()) << exit.status.to_string();
  EXPECT_EQ(harness.console_err(), "done\ndone\n");
}

TEST(Output, ConsoleThatTakesNothingIsGivenUpAtTheEnd) {
  Harness harness;
  StuckConsole console;
  ::close(harness.options.output.console_stdout);
  harness.options.output.console_stdout = ::dup(console.ends[1]);
  harness.options.output.console_patience = milliseconds(200);
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("head -c 150000 /dev/zero", 1)));
  const auto exits = finish(harness, *group);  // does not hang
  EXPECT_EQ(exits.size(), 1u);
}

TEST(Output, TheNextAttemptHasItsPatienceBack) {
  Harness harness;
  StuckConsole console;
  ::close(harness.options.output.console_stdout);
  harness.options.output.console_stdout = ::dup(console.ends[1]);
  harness.options.output.console_patience = seconds(600);
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("exit 0", 1)));
  group->group().hurry();
  finish(harness, *group);
  ASSERT_TRUE(group->start(harness.workers("head -c 150000 /dev/zero; : >$T/written", 1)));
  std::size_t got = 0;
  std::thread reader([&] {
    eventually([&] { return ::access((harness.folder / "written").c_str(), F_OK) == 0; });
    std::this_thread::sleep_for(milliseconds(1'000));  // longer than hurry()'s patience
    char bytes[4096];
    for (ssize_t n; got < 150'000 && (n = ::read(console.ends[0], bytes, sizeof bytes)) > 0;) {
      got += static_cast<std::size_t>(n);
    }
  });
  finish(harness, *group);
  group.reset();
  ::close(std::exchange(console.ends[1], -1));
  ::close(std::exchange(harness.options.output.console_stdout, -1));
  reader.join();
  EXPECT_EQ(got, 150'000u);
}

TEST(Output, PipeHeldByAnEscapedProcessDoesNotHoldUpTheEnd) {
  Harness harness;
  harness.options.use_cgroup = false;
  auto group = harness.make();
  // It leaves the session and hides its environment: nothing of ours finds it as a worker's.
  ASSERT_TRUE(
      group->start(harness.workers("setsid env -i /bin/sh -c 'echo $$ >'$T'/pid; exec sleep 600' & "
                                   "while [ ! -s $T/pid ]; do sleep 0.01; done; echo said",
                                   1)));
  const auto exits = finish(harness, *group);
  EXPECT_EQ(harness.console_out(), "said\n");
  const pid_t pid = std::stoi(read_file(harness.folder / "pid"));
  signal_process(pid, SIGKILL);
  EXPECT_TRUE(eventually([&] { return is_dead(pid); }));
}

// A terminal of ours: what a worker writes must come out of its other side.
struct Terminal {
  Terminal() {
    master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char name[128];
    EXPECT_EQ(::grantpt(master), 0);
    EXPECT_EQ(::unlockpt(master), 0);
    EXPECT_EQ(::ptsname_r(master, name, sizeof name), 0);
    slave = ::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    const winsize size{.ws_row = 33, .ws_col = 77, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::ioctl(master, TIOCSWINSZ, &size), 0);
    ::fcntl(master, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    ::close(master);
    ::close(slave);
  }
  std::string take() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(master, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
    return text;
  }
  int master, slave;
};

TEST(Output, WorkersOnATerminalHaveATerminal) {
  Harness harness;
  Terminal terminal;
  ::close(harness.options.output.console_stdout);
  harness.options.output.console_stdout = ::dup(terminal.slave);
  auto group = harness.make();
  const std::string script =
      "test -t 1 && echo is-a-tty; test -t 2 || echo stderr-is-none; stty size <&1; printf '10%%\\r20%%\\r\\n'";
  ASSERT_TRUE(group->start(harness.workers(script, 1)));
  finish(harness, *group);
  // The outer terminal adds its own carriage returns, ours none.
  EXPECT_EQ(terminal.take(), "is-a-tty\r\nstderr-is-none\r\n33 77\r\n10%\r20%\r\r\n");
}

asio::awaitable<void> resize_and_wait(PatientGroup& group, Harness& harness, Terminal& terminal) {
  EXPECT_TRUE(eventually([&] { return ::access((harness.folder / "up").c_str(), F_OK) == 0; }));
  const winsize size{.ws_row = 44, .ws_col = 99, .ws_xpixel = 0, .ws_ypixel = 0};
  ::ioctl(terminal.master, TIOCSWINSZ, &size);
  ::kill(::getpid(), SIGWINCH);
  while (true) {
    auto exit = co_await group.next_exit();
    if (!exit) break;
  }
  co_await group.stop(SIGTERM, seconds(1));
}

TEST(Output, WindowSizeIsPassedOn) {
  Harness harness;
  Terminal terminal;
  ::close(harness.options.output.console_stdout);
  harness.options.output.console_stdout = ::dup(terminal.slave);
  auto group = harness.make();
  const std::string script =
      "trap 'while [ \"$(stty size <&1)\" = \"33 77\" ]; do sleep 0.01; done; stty size <&1; exit 0' "
      "WINCH; : >$T/up; while :; do sleep 0.02; done";
  ASSERT_TRUE(group->start(harness.workers(script, 1)));
  run(harness.io, resize_and_wait(*group, harness, terminal));
  EXPECT_EQ(terminal.take(), "44 99\r\n");
}

TEST(LogTree, AsTorchrunAndNothingOverwritten) {
  Harness harness;
  harness.options.output.redirects.all = 3;
  for (int run = 0; run < 2; ++run) {
    harness.options.logs = open_logs(harness, "new/deep/dir");
    auto group = harness.make();
    for (int attempt = 0; attempt < 2; ++attempt) {
      ASSERT_TRUE(group->start(harness.workers("echo $RANK $TORCHELASTIC_RESTART_COUNT", 2, attempt)));
      finish(harness, *group);
    }
    auto later = harness.workers("echo again; printf '{}' >$TORCHELASTIC_ERROR_FILE", 2, 1);
    for (auto& spec : later) spec.env.slice.round = Round(5);
    ASSERT_TRUE(group->start(std::move(later)));
    for (const auto& exit : finish(harness, *group)) EXPECT_TRUE(exit.status.success()) << exit.status.to_string();
    EXPECT_EQ(group->group().evidence(LocalRank(1)).error_file_json, "{}");
    EXPECT_EQ(group->group().evidence(LocalRank(1)).error_file,
              harness.options.logs->root() + "/attempt_1.round_5/1/error.json");
  }
  const auto files = files_below(harness.folder / "new/deep/dir");
  EXPECT_EQ(files.size(), 2u * (4 + 4 + 6)) << ::testing::PrintToString(files);
  const std::string root = harness.options.logs->root();
  EXPECT_THAT(root, ::testing::MatchesRegex(".*/new/deep/dir/job_[a-z0-9_]+"));
  EXPECT_EQ(read_file(root + "/attempt_0/1/stdout.log"), "1 0\n");
  EXPECT_EQ(read_file(root + "/attempt_1/1/stdout.log"), "1 1\n");
  EXPECT_EQ(read_file(root + "/attempt_1.round_5/1/stdout.log"), "again\n");
}

TEST(LogTree, SeveralNodesOnOneDiskHaveTheirNamesInTheirFolders) {
  const TempFolder folder;
  auto logs = LogTree::open(folder.path(), "job", nullptr, "node/7");
  ASSERT_TRUE(logs);
  EXPECT_THAT((*logs)->root(), ::testing::StartsWith(folder / "job_node_7_"));
}

TEST(LogTree, TemporaryFolderHoldsErrorFilesAndGoes) {
  Harness harness;
  auto logs = LogTree::open("", "none", nullptr);
  ASSERT_TRUE(logs);
  harness.options.logs = *logs;
  EXPECT_EQ(harness.options.logs->root(), "");  // nothing before it is needed
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("printf '{\"message\": \"m\"}' >$TORCHELASTIC_ERROR_FILE; exit 1", 1)));
  finish(harness, *group);
  EXPECT_EQ(group->group().evidence(LocalRank(0)).error_file_json, "{\"message\": \"m\"}");
  EXPECT_TRUE(group->group().evidence(LocalRank(0)).log_paths.empty());
  const std::string root = harness.options.logs->root();
  EXPECT_EQ(::access(root.c_str(), F_OK), 0);
  group.reset();
  harness.options.logs.reset();
  logs->reset();
  EXPECT_NE(::access(root.c_str(), F_OK), 0);
}

TEST(LogTree, NullDeviceMeansNoFiles) {
  Harness harness;
  auto logs = LogTree::open("/dev/null", "none", nullptr);
  ASSERT_TRUE(logs);
  harness.options.logs = *logs;
  harness.options.output.redirects.all = 1;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("echo gone; echo \"<$TORCHELASTIC_ERROR_FILE>\" >&2", 1)));
  finish(harness, *group);
  EXPECT_EQ(harness.console_out(), "");
  EXPECT_EQ(harness.console_err(), "<>\n");
}

TEST(LogTree, WrongFolderIsToldBeforeTheStart) {
  TempFolder folder;
  write_file(folder / "file", "x");
  for (const std::string& path : {folder / "file", folder / "file/below"}) {
    const auto logs = LogTree::open(path, "none", nullptr);
    ASSERT_FALSE(logs) << path;
    EXPECT_THAT(logs.error().message(), ::testing::HasSubstr(path));
  }
}

TEST(Stdin, GoesToTheFirstRankOnly) {
  Harness harness;
  const int saved = ::dup(0);
  write_file(harness.folder / "input", "hello\n");
  const int input = ::open((harness.folder / "input").c_str(), O_RDONLY | O_CLOEXEC);
  ::dup2(input, 0);
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("x=none; read x; echo $RANK=$x >$T/got$RANK", 2)));
  finish(harness, *group);
  ::dup2(saved, 0);
  ::close(saved);
  ::close(input);
  EXPECT_EQ(read_file(harness.folder / "got0"), "0=hello\n");
  EXPECT_EQ(read_file(harness.folder / "got1"), "1=\n");
}

}  // namespace
}  // namespace ddprun::launcher::testing
