#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

// For tests of whole programs: runs one with a hard limit, in a folder of its own, with a clean environment.
namespace ddprun::testing {

struct Finished {
  int code = -1;  // exit code; 128 + N when signal N ended it
  std::string out, err;
  std::chrono::milliseconds lasted{0};
  bool timed_out = false;

  std::vector<std::string> lines() const;  // of `out`, sorted
};

class Running {
 public:
  Running(pid_t pid, int out, int err);
  ~Running();  // kills what still runs
  Running(Running&& other) noexcept;
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Reads on until `text` stands in stdout (or stderr); false when the program ends or 60 s pass before.
  bool wait_for(const std::string& text);
  Finished wait();  // at most 60 s, then killed and timed_out

 private:
  bool pump(std::chrono::milliseconds limit);  // false when both pipes are at their end
  pid_t pid_;
  int out_fd_, err_fd_;
  std::string out_, err_;
  std::chrono::steady_clock::time_point start_;
};

class ProgramRunner {
 public:
  ProgramRunner();   // makes the folder
  ~ProgramRunner();  // removes it
  ProgramRunner(const ProgramRunner&) = delete;
  ProgramRunner& operator=(const ProgramRunner&) = delete;

  const std::string& folder() const { return folder_; }
  std::string operator/(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text, bool executable = false) const;  // its path
  std::string read(const std::string& name) const;

  // argv[0] is a path, or a name in the build folder. Standard input: `stdin_text`.
  Running start(const std::vector<std::string>& argv) const;
  Finished run(const std::vector<std::string>& argv) const { return start(argv).wait(); }

  std::map<std::string, std::string> environment;  // PATH, HOME and TMPDIR (= the folder's tmp) are set already
  std::string stdin_text;

 private:
  std::string folder_;
};

}  // namespace ddprun::testing
