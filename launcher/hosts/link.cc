#include "launcher/hosts/link.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "launcher/options/worker_command.h"

namespace ddprun::launcher::hosts {
namespace {

constexpr std::size_t kMaxWords = 16 * 1024;
constexpr std::chrono::milliseconds kDrain{1000};

// The program's path, as execvp would find it.
Result<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const std::string path = process_environment()("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find(':', begin), path.size());
    std::string folder = path.substr(begin, end - begin);
    if (folder.empty()) folder = ".";
    std::string whole = folder + "/" + name;
    if (::access(whole.c_str(), X_OK) == 0) return whole;
    begin = end + 1;
  }
  return Error(Errc::not_found, "there is no '" + name + "' in PATH (--rsh names the remote shell)");
}

std::string last_line(std::string_view text) {
  std::string_view found;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (!line.empty()) found = line;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::string(found);
}

}  // namespace

Result<void> Link::open(const std::vector<std::string>& command, const InheritedSignals& inherited) {
  auto in = make_pipe(), out = make_pipe(), err = make_pipe();
  for (auto* pipe : {&in, &out, &err}) {
    if (!*pipe) return std::move(*pipe).error();
  }
  auto program = find_program(command.front());
  if (!program) return std::move(program).error();
  SpawnSpec spec;
  spec.executable = *std::move(program);
  spec.arguments = command;
  spec.environment = environment_strings(environment_map(environ));
  spec.stdin_fd = in->read.get();
  spec.stdout_fd = out->write.get();
  spec.stderr_fd = err->write.get();
  // When we are killed its standard input ends, and what runs behind it ends politely.
  spec.die_with_parent = false;
  auto pid = spawn(spec, inherited);
  if (!pid) return std::move(pid).error();
  pid_ = *pid;
  in_ = std::move(in->write);
  out_ = std::move(out->read);
  err_ = std::move(err->read);
  for (const int fd : {in_.get(), out_.get(), err_.get()}) set_nonblocking(fd);
  return {};
}

Link::~Link() {
  if (pid_ < 0) return;
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Link::send(const Message& message) {
  if (!in_) return;
  to_send_ += encode(message);
  flush();
}

void Link::flush() {
  if (in_ && !write_some(in_.get(), to_send_)) in_.reset();  // the shell's end says the rest
}

Result<void> Link::read(std::vector<Message>& messages) {
  std::string bytes;
  if (out_ && !read_some(out_.get(), bytes)) out_.reset();
  if (!bytes.empty() && drained_at_) drained_at_ = SteadyClock::now() + kDrain;  // our console was full for a while
  reader_.feed(bytes);
  while (true) {
    auto message = reader_.next();
    if (!message) return std::move(message).error();
    if (!*message) return {};
    messages.push_back(std::move(**message));
  }
}

std::string Link::read_words() {
  std::string bytes;
  if (err_ && !read_some(err_.get(), bytes)) err_.reset();
  words_ += bytes;
  if (words_.size() > kMaxWords) words_.erase(0, words_.size() - kMaxWords);
  return bytes;
}

std::optional<ExitStatus> Link::poll_end(TimePoint now) {
  if (pid_ < 0) return std::nullopt;
  if (!ended_) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != pid_) {
      return std::nullopt;
    }
    ended_ = true;
    drained_at_ = now + kDrain;
  }
  if ((out_ || err_) && now < *drained_at_) return std::nullopt;
  ::kill(-pid_, SIGKILL);  // what it left of its group; a ControlMaster is in one of its own
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  drained_at_.reset();
  kill_at_.reset();
  in_.reset();
  out_.reset();
  err_.reset();
  return ExitStatus::from_wait_status(status);
}

std::string Link::last_words() const {
  std::string line = last_line(words_);
  return line.empty() ? last_line(reader_.noise()) : line;
}

void Link::hang_up(TimePoint now, std::chrono::milliseconds patience) {
  in_.reset();
  to_send_.clear();
  if (pid_ >= 0 && !kill_at_) kill_at_ = now + patience;
}

void Link::kill_if_due(TimePoint now) {
  if (pid_ >= 0 && !ended_ && kill_at_ && now >= *kill_at_) ::kill(-pid_, SIGKILL);
}

std::optional<TimePoint> Link::next_deadline() const {
  if (pid_ < 0) return std::nullopt;
  return ended_ ? drained_at_ : kill_at_;
}

}  // namespace ddprun::launcher::hosts
