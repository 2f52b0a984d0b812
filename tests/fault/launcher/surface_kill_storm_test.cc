#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "tests/support/surface_run.h"

// Whole jobs that are killed at random moments, launcher or worker, and what they leave behind: nothing.
// DDPRUN_STORM_ROUNDS=1000 for the long run; DDPRUN_STORM_SEED to repeat one.
namespace {

using ddprun::testing::ProgramRunner;

int number_from(const char* variable, int fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr ? fallback : std::atoi(text);
}

// Living processes whose environment holds `mark`, as "pid command".
std::vector<std::string> marked(const std::string& mark) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "environ", std::ios::binary);
    std::ostringstream environment;
    environment << in.rdbuf();
    if (environment.str().find(mark) == std::string::npos) continue;
    std::ifstream status(entry.path() / "status");
    std::string line, text = pid;
    bool zombie = false;
    while (std::getline(status, line)) {
      if (line.rfind("Name:", 0) == 0) text += " " + line.substr(6);
      zombie |= line.rfind("State:\tZ", 0) == 0;
    }
    if (!zombie) out.push_back(text);
  }
  return out;
}

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) out.push_back(entry.path().filename());
  return out;
}

template <typename Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

TEST(KillStorm, NothingIsLeftBehind) {
  const int rounds = number_from("DDPRUN_STORM_ROUNDS", 40);
  const auto seed = static_cast<unsigned>(number_from("DDPRUN_STORM_SEED", static_cast<int>(::getpid())));
  std::mt19937 random(seed);
  const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  SCOPED_TRACE("DDPRUN_STORM_SEED=" + std::to_string(seed));
  ProgramRunner runner;
  // Two helpers each, one of them in a session of its own; the pid file tells the test whom to kill.
  const std::string worker = runner.write("worker.sh",
                                          "#!/bin/sh\n"
                                          "sleep 300 & setsid sleep 300 &\n"
                                          "echo $$ > pid.$RANK.tmp && mv pid.$RANK.tmp pid.$RANK\n"
                                          "wait\n",
                                          true);
  const auto shared_memory = entries("/dev/shm").size();
  for (int round = 0; round < rounds; ++round) {
    const std::string mark = "DDPRUN_STORM_MARK=" + std::to_string(::getpid()) + "." + std::to_string(round);
    runner.environment["DDPRUN_STORM_MARK"] = mark.substr(mark.find('=') + 1);
    for (const char* name : {"pid.0", "pid.1"}) std::filesystem::remove(runner / name);
    std::vector<std::string> command{"ddprun", "--nproc-per-node=2", "--shutdown-timeout=2"};
    if (below(3) == 0) command.emplace_back("--max-restarts=1");
    if (below(3) == 0) command.emplace_back("--tee=3");
    command.insert(command.end(), {"--no-python", worker});
    auto job = runner.start(command);
    constexpr std::array kSignals{SIGKILL, SIGTERM, SIGINT};
    const int signal = kSignals[static_cast<std::size_t>(below(3))];
    const bool kill_worker = below(3) == 0;
    if (kill_worker) {
      const std::string file = below(2) == 0 ? "pid.0" : "pid.1";
      ASSERT_TRUE(eventually([&] { return !runner.read(file).empty(); })) << "round " << round;
      ::kill(std::atoi(runner.read(file).c_str()), signal);
      // A restarted job runs on; end it the ordinary way.
      std::this_thread::sleep_for(std::chrono::milliseconds(below(40)));
      job.signal(SIGTERM);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(below(60)));
      job.signal(signal);
    }
    const auto end = job.wait();
    ASSERT_FALSE(end.timed_out) << "round " << round << "\n" << end.err;
    EXPECT_NE(end.code, 0) << "round " << round;
    ASSERT_TRUE(eventually([&] { return marked(mark).empty(); }))
        << "round " << round << ", signal " << signal << (kill_worker ? " to a worker" : " to the launcher") << ": "
        << marked(mark).size() << " processes are left, the first: " << marked(mark).front() << "\n"
        << end.err;
    std::vector<std::string> left;
    ASSERT_TRUE(eventually([&] {
      left = entries(runner / "tmp");
      return left.size() <= 1;  // the file that is our standard input
    })) << "round "
        << round << ": temporary files are left: " << left.front();
  }
  EXPECT_LE(entries("/dev/shm").size(), shared_memory + 2);  // others may use it too
}

}  // namespace
