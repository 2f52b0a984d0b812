#include "launcher/hosts/node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/exit_code.h"
#include "common/log.h"
#include "common/options.h"
#include "common/system.h"
#include "common/tcp.h"
#include "launcher/hosts/frames.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/hosts/pipes.h"

namespace ddprun::launcher::hosts {
namespace {

constexpr std::size_t kBacklog = 1 << 20;                    // to the starter; more makes the workers wait
constexpr std::chrono::milliseconds kOrderTimeout{300'000};  // until the starter says what to do; it has its own limits
constexpr std::chrono::milliseconds kDrain{2000};            // for output of a launcher that has ended
constexpr std::chrono::milliseconds kKillAgain{10'000};

// Two shells that ended in one place have one of these.
std::string identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 64> network{};
  const auto size = ::readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  return boot + " " + std::string(network.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
}

// SSH_CONNECTION: client address, client port, server address, server port.
std::string address_reached() {
  const std::string text = process_environment()("SSH_CONNECTION").value_or("");
  std::size_t begin = 0;
  for (int i = 0; i < 2; ++i) {
    begin = text.find(' ', begin);
    if (begin == std::string::npos) return "";
    ++begin;
  }
  const std::string address = text.substr(begin, text.find(' ', begin) - begin);
  return is_loopback(address) || address.starts_with("fe80:") ? "" : address;
}

// Below the kernel's own range (32768 and above), so that no connection takes it before the rendezvous is there.
std::uint16_t free_port() {
  std::random_device random;
  ListenOptions options;
  for (int i = 0; i < 50; ++i) {
    options.port = static_cast<std::uint16_t>(20'000 + random() % 12'000);
    if (auto listener = tcp_listen(options)) return listener->port;
  }
  return 0;
}

class Node {
 public:
  Node(std::string own_path, const InheritedSignals& inherited, SignalPipe signals)
      : own_path_(std::move(own_path)), inherited_(inherited), signals_(std::move(signals)) {}

  int run() {
    set_nonblocking(STDIN_FILENO);
    set_nonblocking(STDOUT_FILENO);
    Hello hello;
    hello.program_version = version_text("ddprun");
    hello.program_version.resize(std::min(hello.program_version.find('\n'), hello.program_version.size()));
    hello.host = host_name();
    hello.identity = identity();
    hello.address = address_reached();
    hello.port = free_port();
    to_send_ = std::string(kMagic) + encode(hello);
    heard_ = SteadyClock::now();
    while (!done()) {
      wait();
      const auto now = SteadyClock::now();
      hear(now);
      pass_signals();
      read_output(now);
      look_for_the_end(now);
      send();
    }
    return code_;
  }

 private:
  bool done() const {
    if (starter_gone_ && child_ < 0) return true;
    return finished_ && to_send_.empty();  // a starter whose console is full takes it later; one that is silent is gone
  }

  void wait() {
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    if (!starter_gone_) fds.push_back({STDIN_FILENO, POLLIN, 0});
    if (!starter_gone_ && !to_send_.empty()) fds.push_back({STDOUT_FILENO, POLLOUT, 0});
    for (auto& [stream, fd] : outputs_) {
      if (to_send_.size() < kBacklog) fds.push_back({fd.get(), POLLIN, 0});
    }
    if (input_ && !input_bytes_.empty()) fds.push_back({input_.get(), POLLOUT, 0});
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(next_deadline() - SteadyClock::now()).count() + 1;
    ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<long long>(left, 0, 60'000)));
  }

  TimePoint next_deadline() const {
    TimePoint next = starter_gone_ ? TimePoint::max() : heard_ + silence_;
    if (kill_at_) next = std::min(next, *kill_at_);
    if (drained_at_ && !finished_ && to_send_.size() < kBacklog) next = std::min(next, *drained_at_);
    return std::min(next, SteadyClock::now() + std::chrono::minutes(1));
  }

  // What is there is read before silence is judged: after a stop of this very process it is old, but there.
  void hear(TimePoint now) {
    if (starter_gone_) return;
    std::string bytes;
    if (!read_some(STDIN_FILENO, bytes)) return lose_starter(now);
    if (!bytes.empty()) heard_ = now;
    reader_.feed(bytes);
    while (!starter_gone_) {
      auto message = reader_.next();
      if (!message) {
        say(fmt::format("ddprun: what the starting host sent cannot be read: {}", message.error().message()));
        return lose_starter(now);
      }
      if (!*message) break;
      std::visit([this](auto& what) { take(what); }, **message);
    }
    if (now >= heard_ + silence_) lose_starter(now);
  }

  void lose_starter(TimePoint now) {
    starter_gone_ = true;
    to_send_.clear();
    if (child_ < 0) return;
    signal_child(SIGTERM);
    kill_at_ = now + patience_;
  }

  // Once it is reaped its number may be another's, though its output is still on the way.
  void signal_child(int number) const {
    if (child_ >= 0 && !status_) ::kill(child_, number);
  }

  void take(const Start& order) {
    if (child_ >= 0 || finished_) return;  // one job for each of us
    silence_ = std::max(order.silence, std::chrono::milliseconds(1000));
    patience_ = order.patience;
    if (auto begun = begin(order); !begun) {
      finish(begun.error().code() == Errc::not_found ? exit_code::kUsage : exit_code::kFailure,
             begun.error().message());
    }
  }
  void take(const Signal& signal) {
    if (signal.number > 0) signal_child(signal.number);
  }
  void take(const Alive&) { to_send_ += encode(Alive{}); }
  void take(const Input& input) {
    if (!input_) return;
    (input.bytes.empty() ? input_ends_ : input_owed_) = true;
    input_bytes_ += input.bytes;
  }
  void take(const Hello&) {}
  void take(const Output&) {}
  void take(const End&) {}

  Result<void> begin(const Start& order) {
    if (::chdir(order.folder.c_str()) != 0) {
      return Error::from_errno(errno, fmt::format("the working directory {} of the starting host", order.folder));
    }
    auto out = make_pipe(), err = make_pipe(), in = make_pipe();
    for (auto* pipe : {&out, &err, &in}) {
      if (!*pipe) return std::move(*pipe).error();
    }
    report_.reset(::memfd_create("ddprun-report", MFD_CLOEXEC));
    if (!report_) return Error::from_errno(errno, "memfd_create");

    std::map<std::string, std::string> environment;
    const auto set = [&environment](std::string_view entry) {
      const auto equals = entry.find('=');
      if (equals == std::string_view::npos || equals == 0) return;
      environment[std::string(entry.substr(0, equals))] = entry.substr(equals + 1);
    };
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      if (!is_for_starter_only(text.substr(0, text.find('=')))) set(text);
    }
    for (const auto& entry : order.environment) set(entry);
    environment["DDPRUN_HOST_REPORT_FD"] = std::to_string(report_.get());
    SpawnSpec spec;
    spec.executable = own_path_;
    spec.arguments = order.arguments;
    for (const auto& [name, value] : environment) spec.environment.push_back(name + "=" + value);
    spec.stdin_fd = order.input ? in->read.get() : -1;
    spec.stdout_fd = out->write.get();
    spec.stderr_fd = err->write.get();
    spec.inherit_fds = {report_.get()};
    auto pid = spawn(spec, inherited_);
    if (!pid) return std::move(pid).error();
    child_ = *pid;
    set_nonblocking(out->read.get());
    set_nonblocking(err->read.get());
    outputs_.emplace(1, std::move(out->read));
    outputs_.emplace(2, std::move(err->read));
    if (order.input) {
      set_nonblocking(in->write.get());
      input_ = std::move(in->write);
    }
    return {};
  }

  // Somebody on this host, or its shell (SIGHUP), means the job.
  void pass_signals() {
    for (const int number : signals_.take()) {
      if (child_ >= 0) {
        signal_child(number);
      } else if (!finished_) {
        finish(exit_code::kSignalBase + number, "its ddprun got a signal before it was told anything");
      }
    }
  }

  void read_output(TimePoint now) {
    for (auto at = outputs_.begin(); at != outputs_.end();) {
      Output output;
      output.stream = at->first;
      bool open = true;
      if (to_send_.size() < kBacklog || starter_gone_) open = read_some(at->second.get(), output.bytes, 64 * 1024);
      if (!output.bytes.empty() && drained_at_) drained_at_ = now + kDrain;
      if (!output.bytes.empty() && !starter_gone_) to_send_ += encode(output);
      at = open ? std::next(at) : outputs_.erase(at);
    }
    if (!input_) return;
    const bool open = write_some(input_.get(), input_bytes_);
    if (open && input_bytes_.empty() && input_owed_) {
      input_owed_ = false;
      if (!starter_gone_) to_send_ += encode(Input{});
    }
    if (!open || (input_ends_ && input_bytes_.empty())) input_.reset();
  }

  void look_for_the_end(TimePoint now) {
    if (child_ >= 0 && !status_) {
      int status = 0;
      const pid_t ended = ::waitpid(child_, &status, WNOHANG);
      if (ended == child_) {
        status_ = ExitStatus::from_wait_status(status);
        drained_at_ = now + kDrain;
      } else if (kill_at_ && now >= *kill_at_) {
        signal_child(SIGKILL);  // its guard ends the workers
        kill_at_ = now + kKillAgain;
      }
    }
    if (!status_ || finished_) return;
    if (!outputs_.empty() && !starter_gone_ && (to_send_.size() >= kBacklog || now < *drained_at_)) return;
    finish(status_->shell_code(), "");
  }

  void finish(int code, const std::string& sentence) {
    code_ = code;
    child_ = -1;
    End end;
    end.code = code;
    end.sentence = sentence;
    if (report_ && ::lseek(report_.get(), 0, SEEK_SET) == 0) {
      while (end.report.size() < kMaxFrame / 2 && read_some(report_.get(), end.report)) {
      }
    }
    if (!starter_gone_) to_send_ += encode(end);
    finished_ = true;
  }

  void send() {
    if (starter_gone_ || to_send_.empty()) return;
    if (!write_some(STDOUT_FILENO, to_send_)) lose_starter(SteadyClock::now());
  }

  std::string own_path_;
  const InheritedSignals& inherited_;
  SignalPipe signals_;
  FrameReader reader_{false};
  std::string to_send_, input_bytes_;
  pid_t child_ = -1;
  std::optional<ExitStatus> status_;
  std::map<int, UniqueFd> outputs_;  // by stream
  UniqueFd input_, report_;
  bool input_ends_ = false, input_owed_ = false, starter_gone_ = false, finished_ = false;
  int code_ = exit_code::kFailure;
  TimePoint heard_;
  std::chrono::milliseconds silence_ = kOrderTimeout, patience_{30'000};
  std::optional<TimePoint> kill_at_, drained_at_;
};

}  // namespace

int serve_node(const std::string& own_path, const InheritedSignals& inherited) {
  auto signals = SignalPipe::open({SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}, inherited);
  if (!signals) {
    say("ddprun: " + signals.error().message());
    return exit_code::kFailure;
  }
  return Node(own_path, inherited, std::move(*signals)).run();
}

}  // namespace ddprun::launcher::hosts
