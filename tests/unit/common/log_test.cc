#include "common/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "common/unique_fd.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Runs `body` with descriptor 2 replaced and gives what was written to it.
template <typename Body>
std::string capture(Body body) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]);
  const UniqueFd saved(::dup(STDERR_FILENO));
  ::dup2(ends[1], STDERR_FILENO);
  ::close(ends[1]);
  body();
  ::dup2(saved.get(), STDERR_FILENO);
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(reader.get(), buffer, sizeof(buffer));
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  return text;
}

TEST(Log, LineHasTimeLevelProgramAndWords) {
  const auto time = std::chrono::system_clock::from_time_t(1793383801) + std::chrono::milliseconds(123);
  EXPECT_EQ(internal::format_log_line(time, 'I', "ddprun", "rendezvous complete round=7"),
            "2026-10-30T18:10:01.123Z I ddprun rendezvous complete round=7\n");
}

TEST(Log, TextOfAPeerCanNeitherForgeALineNorDriveTheTerminal) {
  const std::string line = internal::format_log_line({}, 'W', "p", "a\n2026 I p forged\x1b[2J\r\x7f\ttab \xc3\xa9");
  EXPECT_EQ(line, "1970-01-01T00:00:00.000Z W p a\n  2026 I p forged\\x1b[2J\\r\\x7f\ttab \xc3\xa9\n");
}

TEST(Log, WritesToStderrAboveTheLevelOnly) {
  const std::string text = capture([] {
    log_init("prog", LogLevel::warning);
    log_info("not shown {}", 1);
    log_warning("shown {}", 2);
    log_error("also {}", 3);
    log_set_level(LogLevel::debug);
    log_debug("now shown");
  });
  EXPECT_THAT(text,
              MatchesRegex("[0-9T:.-]+Z W prog shown 2\n[0-9T:.-]+Z E prog also 3\n[0-9T:.-]+Z D prog now shown\n"));
}

TEST(Log, LevelsHaveNames) {
  EXPECT_EQ(from_word<LogLevel>("warning"), LogLevel::warning);
  EXPECT_EQ(from_word<LogLevel>("debug"), LogLevel::debug);
  EXPECT_EQ(from_word<LogLevel>("loud"), std::nullopt);
}

// In a child, because these cases break the process's stderr. The exit code tells what happened.
template <typename Body>
int in_child(Body body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST(Log, AClosedStderrIsNoReasonToDie) {
  EXPECT_EQ(in_child([] {
              ::close(STDERR_FILENO);
              log_init("p", LogLevel::info);
              log_info("nobody hears this");
            }),
            0);
}

TEST(Log, AReaderThatWentAwayRaisesNoSigpipe) {
  EXPECT_EQ(in_child([] {
              std::signal(SIGPIPE, SIG_DFL);
              int ends[2];
              if (::pipe2(ends, O_CLOEXEC) != 0) ::_exit(3);
              ::close(ends[0]);
              ::dup2(ends[1], STDERR_FILENO);
              log_init("p", LogLevel::info);
              for (int i = 0; i < 3; ++i) log_info("line {}", i);
            }),
            0);
}

TEST(Log, WordsWithoutALevelAreEscapedTooAndEndTheirLine) {
  const std::string text = capture([] {
    say("usage: \r\x1b[2J twice\nas given\twith \xc2\x9b csi");
    say("whole\n");
  });
  EXPECT_EQ(text, "usage: \\r\\x1b[2J twice\nas given\twith \\xc2\\x9b csi\nwhole\n");
}

TEST(Log, AForkedChildCanLog) {
  const std::string text = capture([] {
    log_init("p", LogLevel::info);
    EXPECT_EQ(in_child([] { log_info("from the child"); }), 0);
  });
  EXPECT_THAT(text, HasSubstr("from the child\n"));
}

}  // namespace
}  // namespace ddprun
