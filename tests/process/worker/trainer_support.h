#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/surface_run.h"

// Runs the trainer alone or under ddprun on small problems.
namespace ddprun::testing {

inline std::string said(const Finished& run) { return fmt::format("exit {}\n{}{}", run.code, run.out, run.err); }

struct Worker {
  pid_t pid;
  int rank;
};

// The trainers below a launcher.
inline std::vector<Worker> workers_of(pid_t launcher) {
  std::vector<Worker> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const int pid = std::atoi(entry.path().filename().c_str());
    std::ifstream stat(entry.path() / "stat");
    std::string line;
    if (pid <= 0 || !std::getline(stat, line)) continue;
    const std::size_t end = line.rfind(") ");
    if (end == std::string::npos || line.find("(trainer)") == std::string::npos) continue;
    if (std::atoi(line.c_str() + end + 4) != launcher) continue;
    std::ifstream environ(entry.path() / "environ", std::ios::binary);
    for (std::string variable; std::getline(environ, variable, '\0');) {
      if (variable.rfind("RANK=", 0) == 0) found.push_back({pid, std::atoi(variable.c_str() + 5)});
    }
  }
  return found;
}

// "key.sub=value" lines become a YAML file. Defaults: linear model of zeros, mse, csv data, no shuffle.
class TrainerRunner {
 public:
  TrainerRunner() {
    runner_.environment["OMP_NUM_THREADS"] = "1";
    set("model.name", "linear");
    set("model.init", "zeros");
    set("data.format", "csv");
    set("data.train", path("data.csv"));
    set("data.shuffle", "false");
    set("data.batch_size", "4");
    set("loss.name", "mse");
    set("optimizer.lr", "0.05");
    set("train.epochs", "2");
    set("train.seed", "7");
    set("log.file", path("train.log"));
    set("log.every_steps", "1000");
  }

  std::string path(const std::string& name) const { return runner_ / name; }
  void set(const std::string& key, const std::string& value) { values_[key] = value; }
  void unset(const std::string& key) { values_.erase(key); }
  ProgramRunner& runner() { return runner_; }
  std::string read(const std::string& name) const { return runner_.read(name); }

  // y = x1 + 2 x2 + ... + 0.5 and a little noise, always the same.
  void write_csv(const std::string& name, int rows, int features) {
    std::uint64_t state = 5;
    const auto next = [&state] {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      return static_cast<double>(state >> 40) / (1 << 23) - 1;
    };
    std::string text;
    for (int r = 0; r < rows; ++r) {
      double y = 0.5 + next() / 100;
      for (int f = 0; f < features; ++f) {
        const double x = next();
        if (f < 5) y += (f + 1) * x;
        text += fmt::format("{:.4f},", x);
      }
      text += fmt::format("{:.4f}\n", y);
    }
    runner_.write(name, text);
  }

  std::string write_config() const {
    std::map<std::string, std::string> sections;
    for (const auto& [key, value] : values_) {
      const std::size_t dot = key.find('.');
      sections[key.substr(0, dot)] += "  " + key.substr(dot + 1) + ": " + value + "\n";
    }
    std::string text;
    for (const auto& [section, lines] : sections) text += section + ":\n" + lines;
    return runner_.write("config.yaml", text);
  }

  // 0 ranks: without a launcher. `more`: arguments of ddprun.
  std::vector<std::string> command(int ranks, const std::vector<std::string>& more = {}) const {
    const std::string config = write_config();
    if (ranks == 0) return {"trainer", "--config", config};
    std::vector<std::string> argv = {"ddprun", "--standalone", fmt::format("--nproc-per-node={}", ranks)};
    argv.insert(argv.end(), more.begin(), more.end());
    argv.insert(argv.end(), {"trainer", "--config", config});
    return argv;
  }
  Finished run(int ranks, const std::vector<std::string>& more = {}) { return runner_.run(command(ranks, more)); }
  Running start(int ranks, const std::vector<std::string>& more = {}) { return runner_.start(command(ranks, more)); }

  int lines_of(const std::string& name) const {
    std::istringstream in(read(name));
    int count = 0;
    for (std::string line; std::getline(in, line);) ++count;
    return count;
  }

  using Json = nlohmann::json;
  Json json(const std::string& name) const { return Json::parse(read(name), nullptr, false); }
  std::vector<Json> metrics(const std::string& name) const {
    std::vector<Json> all;
    std::istringstream in(read(name));
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line, nullptr, false));
    return all;
  }
  // step, epoch, loss, lr, scale, skipped: all but the speed.
  std::string curve(const std::string& name) const {
    std::string text;
    for (Json line : metrics(name)) {
      line.erase("samples_per_s");
      text += line.dump() + "\n";
    }
    return text;
  }
  void wait_for_lines(const std::string& name, int count) const {
    for (int i = 0; i < 3000 && lines_of(name) < count; ++i) ::usleep(20000);
  }
  static void expect_ok(const Finished& run) { ASSERT_EQ(run.code, 0) << said(run); }
  // What the trainers said themselves; the launcher's report quotes it indented.
  static int own_lines(const Finished& run) {
    int count = 0;
    std::istringstream in(run.err);
    for (std::string line; std::getline(in, line);) count += line.rfind("trainer: ", 0) == 0 ? 1 : 0;
    return count;
  }

 private:
  ProgramRunner runner_;
  std::map<std::string, std::string> values_;
};

}  // namespace ddprun::testing
