#include "tests/support/surface_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace ddprun::testing {
namespace {

constexpr std::chrono::seconds kLimit{60};

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (auto& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

std::vector<std::string> Finished::lines() const {
  std::vector<std::string> all;
  std::istringstream in(out);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  std::sort(all.begin(), all.end());
  return all;
}

Running::Running(pid_t pid, int out, int err)
    : pid_(pid), out_fd_(out), err_fd_(err), start_(std::chrono::steady_clock::now()) {}

Running::Running(Running&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      out_fd_(std::exchange(other.out_fd_, -1)),
      err_fd_(std::exchange(other.err_fd_, -1)),
      out_(std::move(other.out_)),
      err_(std::move(other.err_)),
      start_(other.start_) {}

Running::~Running() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_fd_ >= 0) ::close(out_fd_);
  if (err_fd_ >= 0) ::close(err_fd_);
}

void Running::signal(int number) const { ::kill(pid_, number); }

bool Running::pump(std::chrono::milliseconds limit) {
  std::array<pollfd, 2> files{{{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}}};
  if (out_fd_ < 0 && err_fd_ < 0) return false;
  if (::poll(files.data(), files.size(), static_cast<int>(limit.count())) <= 0) return true;
  std::array<char, 65536> buffer{};
  const auto take = [&buffer](pollfd& file, int& fd, std::string& text) {
    if (file.revents == 0) return;
    const auto size = ::read(fd, buffer.data(), buffer.size());
    if (size > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(size));
    } else {
      ::close(fd);
      fd = -1;
    }
  };
  take(files[0], out_fd_, out_);
  take(files[1], err_fd_, err_);
  return out_fd_ >= 0 || err_fd_ >= 0;
}

bool Running::wait_for(const std::string& text) {
  while (std::chrono::steady_clock::now() - start_ < kLimit) {
    if (out_.find(text) != std::string::npos || err_.find(text) != std::string::npos) return true;
    if (!pump(std::chrono::milliseconds(100))) break;
  }
  return out_.find(text) != std::string::npos || err_.find(text) != std::string::npos;
}

Finished Running::wait() {
  Finished result;
  while (pump(std::chrono::milliseconds(100))) {
    if (std::chrono::steady_clock::now() - start_ > kLimit) {
      result.timed_out = true;
      ::kill(pid_, SIGKILL);
      break;
    }
  }
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() - start_ > kLimit) {
      result.timed_out = true;
      ::kill(pid_, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pid_ = 0;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.lasted = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start_);
  result.out = std::move(out_);
  result.err = std::move(err_);
  return result;
}

ProgramRunner::ProgramRunner() {
  std::string pattern = std::filesystem::temp_directory_path() / "ddprun_surface_XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  folder_ = pattern;
  ::mkdir((folder_ + "/tmp").c_str(), 0700);
  const char* path = std::getenv("PATH");
  environment = {{"PATH", path == nullptr ? "/usr/bin:/bin" : path}, {"HOME", folder_}, {"TMPDIR", folder_ + "/tmp"}};
  // The sanitizers' options of whoever runs the tests.
  for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
}

ProgramRunner::~ProgramRunner() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string ProgramRunner::write(const std::string& name, const std::string& text, bool executable) const {
  const std::string path = folder_ + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  if (executable) ::chmod(path.c_str(), 0755);
  return path;
}

std::string ProgramRunner::read(const std::string& name) const {
  std::ifstream in(folder_ + "/" + name, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Running ProgramRunner::start(const std::vector<std::string>& argv) const {
  std::vector<std::string> words = argv, variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  const std::string program =
      argv.front().find('/') == std::string::npos ? std::string(DDPRUN_BINARY_DIR) + "/" + argv.front() : argv.front();
  auto arguments = pointers(words), settings = pointers(variables);
  const std::string input_path = write("tmp/stdin", stdin_text);
  std::array<int, 2> out{}, err{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int input = ::open(input_path.c_str(), O_RDONLY);
    ::dup2(input, 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGPIPE}) ::signal(number, SIG_DFL);
    ::setsid();
    if (::chdir(folder_.c_str()) == 0) ::execve(program.c_str(), arguments.data(), settings.data());
    ::_exit(99);
  }
  ::close(out[1]);
  ::close(err[1]);
  return Running(pid, out[0], err[0]);
}

}  // namespace ddprun::testing
