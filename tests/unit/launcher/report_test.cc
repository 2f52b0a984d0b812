#include "launcher/job/report.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "launcher/job/report_file.h"
#include "launcher/output/error_file.h"
#include "launcher/output/remedy.h"
#include "tests/support/proc_files.h"

namespace ddprun::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

FailureRecord failed(int rank, int exit_code, int signal = 0) {
  FailureRecord failure;
  failure.rank = Rank(rank);
  failure.local_rank = LocalRank(rank);
  failure.host = "node1";
  failure.pid = 1000 + rank;
  failure.exit_code = exit_code;
  failure.signal = signal;
  failure.unix_time = std::chrono::milliseconds(1764443500250);
  return failure;
}

JobReport job(FailureRecord root) {
  JobReport report;
  report.run_id = "job7";
  report.entrypoint = "train.py";
  report.python = "/venv/bin/python";
  report.exit_code = 3;
  report.failures = {root};
  report.root_cause = std::move(root);
  return report;
}

TEST(Report, SaysWhoHowAndWhy) {
  ::setenv("TZ", "UTC", 1);
  FailureRecord root = failed(1, 3);
  root.last_lines = {"Traceback (most recent call last):", "  File \"train.py\", line 3",
                     "ValueError: the flux is NaN"};
  root.log_paths = {"/logs/job7_x/attempt_0/1/stderr.log"};
  JobReport report = job(root);
  FailureRecord echo = failed(0, 0, SIGTERM);
  echo.stopped_by_us = true;
  report.failures.push_back(echo);
  report.failures.push_back(failed(2, 5));
  const std::string text = to_text(report);
  EXPECT_EQ(text,
            "============================================================\n"
            "train.py FAILED: rank 1 on node1: exit code 3: ValueError: the flux is NaN\n"
            "Root Cause (first observed failure):\n"
            "  time      : 2025-11-29_19:11:40\n"
            "  host      : node1\n"
            "  rank      : 1 (local_rank: 1)\n"
            "  exitcode  : 3 (pid: 1001)\n"
            "  error_file: <N/A>\n"
            "  traceback : ValueError: the flux is NaN\n"
            "Last 3 lines of rank 1:\n"
            "  | Traceback (most recent call last):\n"
            "  |   File \"train.py\", line 3\n"
            "  | ValueError: the flux is NaN\n"
            "Others: rank 2 on node1: exit code 5; 1 stopped by ddprun\n"
            "Logs: /logs/job7_x/attempt_0/1/stderr.log\n"
            "============================================================\n");
}

TEST(Report, NamesTheSignal) {
  const std::string text = to_text(job(failed(1, 0, SIGSEGV)));
  EXPECT_THAT(text, HasSubstr("rank 1 on node1: signal 11 (SIGSEGV)"));
  EXPECT_THAT(text, HasSubstr("exitcode  : -11 (pid: 1001) (SIGSEGV)"));
  EXPECT_THAT(text, HasSubstr("traceback : Signal 11 (SIGSEGV) received by PID 1001"));
}

TEST(Report, OutOfMemoryIsSaidAndAPlainKillIsNot) {
  FailureRecord root = failed(0, 0, SIGKILL);
  root.out_of_memory = true;
  EXPECT_THAT(to_text(job(root)), HasSubstr("killed by the kernel, out of memory (SIGKILL)"));
  EXPECT_THAT(to_text(job(root)), HasSubstr("killed by the memory limit"));
  root.out_of_memory = false;
  EXPECT_THAT(to_text(job(root)), Not(HasSubstr("killed by the memory limit")));
  EXPECT_THAT(to_text(job(root)), HasSubstr("killed from outside"));
}

TEST(Report, ErrorFileComesFirst) {
  FailureRecord root = failed(1, 9);
  root.last_lines = {"noise"};
  root.error_file_json =
      R"({"message": {"message": "ValueError: the flux is NaN", "extraInfo": {"py_callstack": "Traceback:\n  in step 17\nValueError: the flux is NaN\n", "timestamp": "1764443500"}}})";
  const std::string text = to_text(job(root));
  EXPECT_THAT(text, HasSubstr("exit code 9: ValueError: the flux is NaN\n"));
  EXPECT_THAT(text, HasSubstr("traceback : Traceback:\n      in step 17\n    ValueError: the flux is NaN\n"));
}

TEST(Report, BrokenErrorFileDoesNotBreakIt) {
  FailureRecord root = failed(1, 9);
  root.error_file_json = "{\"message\": {\"mess\xff";
  root.last_lines = {"caf\xe9"};
  const JobReport report = job(root);
  EXPECT_THAT(to_text(report), HasSubstr("rank 1 on node1: exit code 9\n"));
  EXPECT_TRUE(nlohmann::json::parse(to_json(report))["root_cause"]["error_file"].is_null());
}

TEST(Report, AnErrorFileThatSaysNothingIsNotSaidToBeShown) {
  const auto label = [](std::string json) {
    FailureRecord root = failed(1, 9);
    root.error_file_json = std::move(json);
    const std::string text = to_text(job(root));
    const std::size_t at = text.find("error_file: ");
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(label("\x93\x01\xff random"), "error_file: (temporary, not readable as JSON)");
  EXPECT_EQ(label(R"({"message":{"message":null}})"), "error_file: (temporary, has no message)");
  EXPECT_EQ(label(R"({"message": {"message": "E: x", "extraInfo")"), "error_file: (temporary, shown below)");
}

TEST(Report, JsonHasTheSameFacts) {
  FailureRecord root = failed(1, 0, SIGABRT);
  root.last_lines = {"a", "b"};
  JobReport report = job(root);
  report.attempts.push_back(
      {.restart_count = 0, .round = Round(2), .lasted = std::chrono::milliseconds(1500), .outcome = "rank 1 failed"});
  const auto object = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(object["version"], 1);
  EXPECT_EQ(object["run_id"], "job7");
  EXPECT_EQ(object["exit_code"], 3);
  EXPECT_EQ(object["root_cause"]["rank"], 1);
  EXPECT_EQ(object["root_cause"]["signal_name"], "SIGABRT");
  EXPECT_EQ(object["root_cause"]["time"], "2025-11-29T19:11:40.250Z");
  EXPECT_EQ(object["root_cause"]["last_lines"].size(), 2u);
  EXPECT_EQ(object["attempts"][0]["lasted_ms"], 1500);
  EXPECT_EQ(object["failures"].size(), 1u);
}

TEST(Report, WithoutAWorkerTheReasonIsOneLine) {
  JobReport report;
  report.reason = "rendezvous timed out after 60 s";
  EXPECT_EQ(to_text(report), "ddprun: rendezvous timed out after 60 s\n");
  report.success = true;
  EXPECT_EQ(to_text(report), "");
}

TEST(Report, FileIsWholeOrAnError) {
  testing::Folder folder;
  const std::string path = folder / "report.json";
  const auto file = ReportFile::open(path, "node1", false);
  ASSERT_TRUE(file);
  EXPECT_EQ(*file->write("first"), path);
  EXPECT_EQ(*file->write("second"), path);
  EXPECT_EQ(testing::read_all(path), "second");
  const auto missing = ReportFile::open(folder / "no/such/report.json", "node1", false);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message(), HasSubstr("no/such/report.json"));
  EXPECT_FALSE(ReportFile::open(folder.path(), "node1", false));
}

TEST(Report, NodesThatShareADiskDoNotOverwriteEachOther) {
  testing::Folder folder;
  const std::string path = folder / "report.json";
  testing::write_all_text(path, "of an earlier run");
  const timespec times[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const auto a = ReportFile::open(path, "nodeA", true), b = ReportFile::open(path, "nodeB", true);
  ASSERT_TRUE(a);
  ASSERT_TRUE(b);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the file system's clock has ticked since
  EXPECT_EQ(*a->write("of A"), path);
  EXPECT_EQ(*b->write("of B"), folder / "report.nodeB.json");
  EXPECT_EQ(*b->write("of B's neighbour"), folder / ("report.nodeB." + std::to_string(::getpid()) + ".json"));
  EXPECT_EQ(testing::read_all(path), "of A");
  EXPECT_EQ(testing::read_all(folder / "report.nodeB.json"), "of B");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 3);  // and nothing else
}

// A rename would have put a file in the place of /dev/null or /dev/stdout.
TEST(Report, LinkIsWrittenThroughNotReplaced) {
  testing::Folder folder;
  const std::string path = folder / "report.json";
  const std::string link = folder / "link";
  ASSERT_EQ(::symlink("report.json", link.c_str()), 0);
  testing::write_all_text(path, "older and longer");
  const auto file = ReportFile::open(link, "node1", true);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->write("words"));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(testing::read_all(path), "words");
}

// It would wait for ever.
TEST(Report, APipeThatNobodyReadsIsAnError) {
  testing::Folder folder;
  const std::string path = folder / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto file = ReportFile::open(path, "node1", false);
  ASSERT_TRUE(file);
  EXPECT_FALSE(file->write("words"));
}

TEST(Report, NothingOfOthersDrivesTheTerminalOrForgesALine) {
  FailureRecord root = failed(1, 3);
  root.host = "host\nddprun: all is well\x1b[2J";
  root.last_lines = {"\x1b[31mValueError: red\x1b[0m", "\x1b]52;c;ZXZpbA==\x07", "a\rb"};
  root.log_paths = {"/logs/\x1b[0m"};
  JobReport report = job(root);
  report.entrypoint = "train.py\r";
  report.reason = "rank 1 on h\x1b[2J failed\nforged";
  report.notes = {"rank 0 on \x9b ended with 0"};
  report.attempts.resize(2);
  report.attempts[0].outcome = "\x1b[1A";
  FailureRecord other = failed(2, 1);
  other.host = "\x07";
  report.failures.push_back(other);
  root.error_file_json = R"({"message": {"message": "E\u001b[2J", "extraInfo": {"py_callstack": "a\u001b[2J\nb"}}})";
  const std::string text = to_text(report);
  for (const char c : text) {
    EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << static_cast<int>(c) << " in " << text;
  }
  EXPECT_THAT(text, Not(HasSubstr("\nddprun: all is well")));
  EXPECT_THAT(text, Not(HasSubstr("\nforged")));
  EXPECT_THAT(text, HasSubstr("train.py\\r FAILED: rank 1 on host\\nddprun: all is well\\x1b[2J: exit code 3"));
  EXPECT_THAT(text, HasSubstr("  | ValueError: red\n"));
  report.root_cause = root;
  EXPECT_THAT(to_text(report), Not(HasSubstr("\x1b")));
}

TEST(Report, OneExceptionIsPrintedOnce) {
  const auto times = [](const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  FailureRecord root = failed(1, 1);
  root.last_lines = {"Traceback (most recent call last):", "  in step 17", "ValueError: the flux is NaN"};
  JobReport report = job(root);
  EXPECT_EQ(times(to_text(report), "in step 17"), 1u);
  report.root_is_above = true;  // the worker's own words stand there
  EXPECT_EQ(times(to_text(report), "in step 17"), 0u);
  EXPECT_THAT(to_text(report), HasSubstr("exit code 1: ValueError: the flux is NaN\n"));
  EXPECT_THAT(to_text(report), HasSubstr("The last lines of rank 1 are above.\n"));

  // With an error file: @record raises the exception again, so Python prints it too.
  report.root_cause->error_file_json =
      R"({"message": {"message": "ValueError: the flux is NaN", "extraInfo": {"py_callstack": "Traceback:\n  in step 17\nValueError: the flux is NaN\n"}}})";
  EXPECT_EQ(times(to_text(report), "in step 17"), 0u);
  report.root_is_above = false;
  EXPECT_EQ(times(to_text(report), "in step 17"), 1u);
  report.root_cause->last_lines = {"Segmentation fault"};  // something else: both are wanted
  EXPECT_EQ(times(to_text(report), "in step 17"), 1u);
  EXPECT_THAT(to_text(report), HasSubstr("| Segmentation fault\n"));
}

TEST(Report, NotesOfTheOutcomeAreInBoth) {
  JobReport report = job(failed(1, 3));
  report.notes = {"rank 0 ended with 0 at 04:12:07, before the others"};
  report.host = "node1";
  EXPECT_THAT(to_text(report), HasSubstr("\nNote: rank 0 ended with 0 at 04:12:07, before the others\n"));
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["notes"][0], report.notes[0]);
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["host"], "node1");
  report.root_cause.reset();
  report.reason = "rendezvous timed out";
  EXPECT_EQ(to_text(report),
            "ddprun: rendezvous timed out\nNote: rank 0 ended with 0 at 04:12:07, before the others\n");
}

// A node that does not own the root cause gets its exit code alone.
TEST(Report, A75ThatFailedTheJobIsExplainedOnEveryNode) {
  JobReport report = job(failed(1, 75));
  const std::string why =
      "rank 1 on node1 ended with 75 (state saved), others did not: there is no state that all can "
      "resume from";
  EXPECT_THAT(to_text(report), HasSubstr("\nNote: " + why + "\n"));
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["notes"], nlohmann::json({why}));
  report.notes = {
      "some workers ended with 75 (state saved), others with 0: there is no state that all can resume from"};
  EXPECT_THAT(to_text(report), Not(HasSubstr("others did not")));
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["notes"].size(), 1u);
  EXPECT_THAT(to_text(job(failed(1, 3))), Not(HasSubstr("Note:")));
}

TEST(Report, WhereNoWorkerRanNoneIsNamed) {
  ::setenv("TZ", "UTC", 1);
  FailureRecord root = failed(0, 1);
  root.pid = 0;
  root.message =
      "node1 cannot start its workers: cannot start local rank 1: clone for /x: Resource temporarily "
      "unavailable: the limit on processes is reached (ulimit -u is 4 for this user)";
  JobReport report = job(root);
  FailureRecord other = root;
  other.host = "node2";
  other.message = "node2 cannot start its workers: no";
  report.failures.push_back(other);
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("train.py FAILED: node1 cannot start its workers: cannot start local rank 1: "));
  EXPECT_THAT(text, HasSubstr("  time      : 2025-11-29_19:11:40\n  host      : node1\nWhat to do: "));
  EXPECT_THAT(text, HasSubstr("raise it with ulimit -u"));
  EXPECT_THAT(text, HasSubstr("Others: node2 cannot start its workers: no\n"));
  for (const char* words : {"rank 0", "exitcode", "pid:", "<N/A>"}) EXPECT_THAT(text, Not(HasSubstr(words)));
  const auto json = nlohmann::json::parse(to_json(report))["root_cause"];
  for (const char* key : {"rank", "local_rank", "pid"}) EXPECT_TRUE(json[key].is_null()) << key;
  EXPECT_EQ(json["how"], root.message);
}

TEST(Report, OwnErrorFileHasTorchsSchema) {
  testing::Folder folder;
  const std::string path = folder / "error.json";
  FailureRecord root = failed(1, 9);
  root.error_file_json = R"({"message": {"message": "E: x", "extraInfo": {"timestamp": "5"}}})";
  ASSERT_TRUE(write_file(path, to_error_file(root)));
  auto object = nlohmann::json::parse(testing::read_all(path));
  EXPECT_EQ(object["message"]["message"], "E: x");
  EXPECT_EQ(object["message"]["errorCode"], 9);
  EXPECT_EQ(object["message"]["extraInfo"]["timestamp"], "5");

  ASSERT_TRUE(write_file(path, to_error_file(failed(1, 0, SIGKILL))));
  object = nlohmann::json::parse(testing::read_all(path));
  EXPECT_EQ(object["message"]["errorCode"], -9);
  EXPECT_EQ(object["message"]["message"], "signal 9 (SIGKILL)");
  EXPECT_EQ(object["message"]["extraInfo"]["timestamp"], "1764443500");
}

std::string nested(std::size_t depth) {
  return R"({"message":"boom","x":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
}

TEST(ErrorFile, AnyDepthCostsNoMoreThanItsText) {
  for (const std::size_t depth : {17u, 1000u, 500'000u}) {
    const std::string json = nested(depth);
    EXPECT_EQ(parse_error_file(json).message, "boom");
    FailureRecord root = failed(1, 9);
    root.error_file_json = json;
    EXPECT_THAT(to_text(job(root)), HasSubstr("exit code 9: boom\n"));
    const std::string report = to_json(job(root));
    EXPECT_LT(report.size(), 20'000u);
    EXPECT_EQ(nlohmann::json::parse(report)["root_cause"]["error_file"]["message"], "boom");
    EXPECT_LT(to_error_file(root).size(), 20'000u);
  }
  // Wide is no better than deep.
  std::string wide = R"({"message":"boom","x":[0)";
  for (int i = 0; i < 300'000; ++i) wide += ",[0]";
  FailureRecord root = failed(1, 9);
  root.error_file_json = wide + "]}";
  EXPECT_LT(to_json(job(root)).size(), 1'000'000u);
}

TEST(ErrorFile, ALongOneIsMadeToFitAndKeepsWhatMatters) {
  const std::string stack = std::string(2'000'000, 'x') + "\nValueError: the end";
  const nlohmann::json whole = {
      {"message", {{"message", "ValueError: the end"}, {"extraInfo", {{"timestamp", "5"}, {"py_callstack", stack}}}}}};
  testing::Folder folder;
  testing::write_all_text(folder / "error.json", whole.dump());
  const std::string fit = read_error_file(folder / "error.json");
  EXPECT_LE(fit.size(), kMaxErrorFileBytes);
  const ErrorFile file = parse_error_file(fit);
  EXPECT_EQ(file.message, "ValueError: the end");
  EXPECT_THAT(file.callstack, ::testing::EndsWith("ValueError: the end"));
  EXPECT_EQ(file.unix_time, std::chrono::seconds(5));
  EXPECT_EQ(fit_error_file(R"({"message":"small"})"), R"({"message":"small"})");
  EXPECT_EQ(parse_error_file(fit_error_file(nested(100))).message, "boom");
}

TEST(ErrorFile, WhatStandsBeforeTheCutCounts) {
  EXPECT_EQ(parse_error_file(R"({"message": {"message": "E: x", "extraInfo": {"py_call)").message, "E: x");
}

TEST(ErrorFile, TakesBothShapes) {
  EXPECT_EQ(parse_error_file(R"({"message": "plain", "timestamp": 12})").message, "plain");
  EXPECT_EQ(parse_error_file(R"({"message": "plain", "timestamp": 12})").unix_time, std::chrono::seconds(12));
  EXPECT_EQ(parse_error_file(R"({"message": {"message": "m", "extraInfo": {"timestamp": "7"}}})").unix_time,
            std::chrono::seconds(7));
  for (const char* broken : {"", "null", "[]", "{}", "{\"message\": 3}", "{\"message\": {}}", "{\"mess"}) {
    EXPECT_EQ(parse_error_file(broken).message, "") << broken;
  }
}

struct RemedyCase {
  const char* line;
  int exit_code;
  const char* advice;
};

TEST(Remedy, EachFailureItsOwnSentence) {
  const RemedyCase cases[] = {
      {"ModuleNotFoundError: No module named 'transformers'", 1,
       "'transformers' is not installed for /venv/bin/python"},
      {"bdb.BdbQuit", 1, "--stdin=0"},
      {"EOFError: EOF when reading a line", 1, "found no standard input"},
      {"ImportError: cannot import name 'x' from 'y'", 1, "an import failed in /venv/bin/python"},
      {"./a.out: error while loading shared libraries: libfoo.so.1: cannot open shared object file", 127,
       "shared library is missing"},
      {"python: can't open file '/x/train.py': [Errno 2] No such file or directory", 2, "script does not exist"},
      {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 1, "GPU's memory ran out"},
      {"RuntimeError: Address already in use", 1, "a port is taken"},
      {"OSError: [Errno 28] No space left on device", 1, "disk is full"},
      {"run.sh: line 3: foo: command not found", 127, "program was not found"},
      {"run.sh: line 3: ./foo: Permission denied", 126, "cannot be executed"},
      {"PermissionError: [Errno 13] Permission denied: '/data/x'", 1, "may not be read"},
      {"MemoryError", 1, "allocation failed"},
      {"train.py: error: unrecognized arguments: --local-rank=0", 2, "--local-rank-style"},
      {"ValueError: what the user's code does", 1, ""},
  };
  for (const auto& c : cases) {
    FailureRecord failure = failed(0, c.exit_code);
    failure.last_lines = {"something before", c.line};
    const std::string advice = find_remedy(failure, "/venv/bin/python");
    if (*c.advice == '\0') {
      EXPECT_EQ(advice, "") << c.line;
    } else {
      EXPECT_THAT(advice, HasSubstr(c.advice)) << c.line;
    }
  }
}

TEST(Remedy, WhatKeptWorkersFromStarting) {
  FailureRecord failure = failed(0, 126);
  failure.message = "node1 cannot start its workers: cannot start local rank 0: exec ./junk: Exec format error";
  EXPECT_THAT(find_remedy(failure, ""), HasSubstr("not a program for this machine"));
  EXPECT_THAT(find_remedy(failure, ""), Not(HasSubstr("chmod")));
  failure.message = "node1 cannot start its workers: exec ./junk: Permission denied";
  EXPECT_THAT(find_remedy(failure, ""), HasSubstr("chmod +x"));
  failure.exit_code = 1;
  failure.message = "node1 cannot start its workers: pipe: the limit on open files is reached (ulimit -n is 64)";
  EXPECT_THAT(find_remedy(failure, ""), HasSubstr("raise it with ulimit -n"));
  failure.message = "node1 cannot start its workers: clone: the limit on processes is reached (ulimit -u is 4)";
  EXPECT_THAT(find_remedy(failure, ""), HasSubstr("raise it with ulimit -u"));
}

TEST(Remedy, AThreadThatOutlivesThePythonInterpreter) {
  FailureRecord failure = failed(0, 0);
  failure.signal = SIGABRT;
  failure.last_lines = {"terminate called without an active exception"};
  EXPECT_THAT(find_remedy(failure, "python3"), HasSubstr("destroy_process_group()"));
  failure.last_lines = {"terminate called after throwing an instance of 'std::runtime_error'"};
  EXPECT_EQ(find_remedy(failure, "python3"), "");
}

TEST(Remedy, FindsTheLineThatNamesTheError) {
  EXPECT_EQ(find_error_line({"a", "pkg.mod.CustomError: bad", "[rank0]: closing"}), "pkg.mod.CustomError: bad");
  EXPECT_EQ(find_error_line({"bash: foo: command not found", "bye"}), "bash: foo: command not found");
  EXPECT_EQ(find_error_line({"epoch 1", "epoch 2"}), "");
}

TEST(Report, NamesEarlierAttemptsAlsoAfterSuccess) {
  JobReport report;
  report.success = true;
  EXPECT_EQ(earlier_attempts(report), "");
  report.attempts = {{.restart_count = 0,
                      .round = Round(1),
                      .lasted = std::chrono::milliseconds(12'340),
                      .ended_unix_time = std::chrono::milliseconds(1'796'000'000'000),
                      .outcome = "rank 1 ended with signal 9 (SIGKILL)"},
                     {.restart_count = 1, .round = Round(2), .outcome = "succeeded"}};
  const std::string text = earlier_attempts(report);
  EXPECT_EQ(text.rfind("Attempt 0 (round 1) ended after 12.3 s at 20", 0), 0u) << text;
  EXPECT_NE(text.find(": rank 1 ended with signal 9 (SIGKILL)\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("Attempt 1"), std::string::npos) << text;
  EXPECT_EQ(to_text(report), "");
}

}  // namespace
}  // namespace ddprun::launcher
