#include "launcher/hosts/starter.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "common/exit_code.h"
#include "common/log.h"
#include "common/lookup.h"
#include "common/printable.h"
#include "common/signal_names.h"
#include "common/system.h"
#include "common/tcp.h"
#include "launcher/hosts/link.h"
#include "launcher/hosts/pipes.h"
#include "launcher/hosts/remote_command.h"
#include "launcher/hosts/verdict.h"
#include "launcher/output/output_console.h"

namespace ddprun::launcher::hosts {
namespace {

constexpr std::chrono::milliseconds kShellPatience{3000};  // for a shell whose node has ended, or is to
constexpr std::chrono::milliseconds kConsolePatience{10'000};
constexpr std::chrono::milliseconds kLookupPatience{3000};

bool is_numeric(const std::string& host) {
  return host.find(':') != std::string::npos || host.find_first_not_of("0123456789.") == std::string::npos;
}

class Starter {
 public:
  Starter(StarterOptions options, const InheritedSignals& inherited, SignalPipe signals)
      : options_(std::move(options)),
        inherited_(inherited),
        signals_(std::move(signals)),
        job_(options_.job),
        links_(options_.hosts.size()),
        parties_(options_.hosts.size()),
        out_(STDOUT_FILENO),
        err_(STDERR_FILENO) {
    own_words_ = err_.mixer.add("");
    for (std::size_t i = 0; i < parties_.size(); ++i) {
      const std::string prefix = "[" + options_.hosts[i].address() + "] ";
      parties_[i].out = out_.mixer.add(prefix);
      parties_[i].err = err_.mixer.add(prefix);
    }
  }

  int run() {
    for (const auto& note : options_.notes) log('W', note);
    next_alive_ = SteadyClock::now() + alive_every(options_.job.silence);
    act(job_.begin(SteadyClock::now()));
    while (!finished_) turn();
    close();
    const auto verdict =
        give_verdict(options_.job.hosts, job_.ends(), options_.job.min_hosts, job_.started(), job_.stopped_by());
    write(err_, own_words_, verdict.text);
    empty_consoles();
    return verdict.code;
  }

 private:
  struct Party {
    int out = 0, err = 0;  // streams of the consoles
    Hello hello;
    bool answered = false;
    bool told = false;  // got its order: what it says may be in its output
  };

  // ---- what the job decides, done ----

  void act(const HostJob::Actions& actions) {
    for (const auto& action : actions) {
      switch (action.what) {
        case HostJob::Do::dial:
          dial(action.host);
          break;
        case HostJob::Do::start:
          order(action.host);
          break;
        case HostJob::Do::signal:
          links_[action.host].send(Signal{action.signal});
          break;
        case HostJob::Do::hang_up:
          links_[action.host].hang_up(SteadyClock::now(), kShellPatience);
          if (job_.started()) tell_loss(action.host);
          break;
        case HostJob::Do::finish:
          finished_ = true;
          break;
      }
    }
  }

  void dial(std::size_t i) {
    const Host& host = options_.hosts[i];
    Result<std::vector<std::string>> command =
        is_this_host(host) ? std::vector<std::string>{options_.own_path, std::string(kNodeWord)}
                           : remote_command(options_.remote_shell, host.name, options_.own_path);
    Result<void> opened = command ? links_[i].open(*command, inherited_) : Result<void>(std::move(command).error());
    if (!opened) failed_dials_.emplace_back(i, opened.error().message());
  }

  void order(std::size_t i) {
    if (first_.host.empty()) choose_first();
    parties_[i].told = true;
    links_[i].send(options_.order(i, first_));
    if (i == 0) wants_input_ = ::isatty(STDIN_FILENO) == 0;
  }

  // Where the others meet the first host: as the list says, if that is an address; else as the remote shell reached
  // it, since a name may be an alias of ssh's that nobody else knows.
  void choose_first() {
    const Host& host = options_.hosts.front();
    const Hello& hello = parties_.front().hello;
    first_.port = options_.port != 0 ? options_.port : hello.port;
    first_.host = host.address();
    if (is_numeric(first_.host) && !is_loopback(first_.host)) return;
    if (!hello.address.empty()) {
      first_.host = hello.address;
    } else if (is_this_host(host)) {
      const auto other = std::find_if(options_.hosts.begin() + 1, options_.hosts.end(),
                                      [](const Host& candidate) { return !is_this_host(candidate); });
      if (other == options_.hosts.end()) {
        first_.host = "127.0.0.1";
      } else if (auto address = local_address_towards({other->address(), 22}); address && !is_loopback(*address)) {
        first_.host = *address;
      } else {
        first_.host = host_name();
      }
    } else if (!hello.host.empty() && !Lookup(first_.host).wait(SteadyClock::now() + kLookupPatience)) {
      first_.host = hello.host;  // the list's name means something to the remote shell only
    }
  }

  void tell_loss(std::size_t i) {
    const HostEnd& end = job_.ends()[i];
    if (end.kind == HostEnd::Kind::lost) log('W', fmt::format("{} is lost: {}", options_.job.hosts[i], end.words));
  }

  // ---- one turn of the loop ----

  void turn() {
    wait();
    const auto now = SteadyClock::now();
    for (const int number : signals_.take()) on_signal(number, now);
    for (const auto& [i, words] : std::exchange(failed_dials_, {})) act(job_.on_shell_end(i, words, now));
    for (std::size_t i = 0; i < links_.size(); ++i) hear(i, now);
    pass_input();
    if (now >= next_alive_) {
      for (std::size_t i = 0; i < links_.size(); ++i) {
        if (parties_[i].answered) links_[i].send(Alive{});
      }
      next_alive_ = now + alive_every(options_.job.silence);
    }
    // Before silence is judged all that is there has been read.
    act(job_.tick(now));
    show(now);
  }

  bool has_room() const { return !(out_.takes() && out_.full()) && !(err_.takes() && err_.full()); }

  void wait() {
    if (!failed_dials_.empty()) return;
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    const bool room = has_room();
    for (auto& link : links_) {
      if (room && link.out_fd() >= 0) fds.push_back({link.out_fd(), POLLIN, 0});
      if (room && link.err_fd() >= 0) fds.push_back({link.err_fd(), POLLIN, 0});
      if (link.has_to_send()) fds.push_back({link.in_fd(), POLLOUT, 0});
    }
    for (Console* console : {&out_, &err_}) {
      if (console->takes() && console->waiting() > 0) fds.push_back({console->out.poll_fd(), POLLOUT, 0});
    }
    if (takes_input()) fds.push_back({STDIN_FILENO, POLLIN, 0});
    TimePoint next = next_alive_;
    const auto sooner = [&next](std::optional<TimePoint> at) {
      if (at) next = std::min(next, *at);
    };
    sooner(job_.next_deadline());
    sooner(out_.mixer.next_flush());
    sooner(err_.mixer.next_flush());
    for (const auto& link : links_) sooner(link.next_deadline());
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - SteadyClock::now()).count() + 1;
    ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<long long>(left, 0, 60'000)));
  }

  void on_signal(int number, TimePoint now) {
    const auto& ends = options_.ends_job;
    const bool ends_job = std::find(ends.begin(), ends.end(), number) != ends.end();
    log(ends_job ? 'W' : 'I', fmt::format("{}: passed to all hosts", signal_name(number)));
    act(job_.on_signal(number, ends_job, now));
  }

  void hear(std::size_t i, TimePoint now) {
    Link& link = links_[i];
    if (!link.is_open()) return;
    link.flush();
    if (!has_room()) {
      job_.on_heard(i, now);  // its words wait for our console; nobody's silence counts
      return;
    }
    std::vector<Message> messages;
    auto read = link.read(messages);
    const std::string words = link.read_words();
    // Before the order the shell's own words are for the last word, if it comes to that.
    if (parties_[i].told) write(err_, parties_[i].err, words);
    for (auto& message : messages) {
      job_.on_heard(i, now);
      std::visit([this, i, now](auto& what) { take(i, what, now); }, message);
    }
    if (!read) act(job_.on_shell_end(i, read.error().message(), now));
    link.kill_if_due(now);
    if (auto status = link.poll_end(now)) act(job_.on_shell_end(i, shell_words(i, *status), now));
  }

  // What a user needs to know of a shell that ended.
  std::string shell_words(std::size_t i, const ExitStatus& status) const {
    const std::string said = links_[i].last_words();
    if (!parties_[i].answered && (status.code == 127 || status.code == 126)) {
      return fmt::format("{} cannot be run there: {} (the same path must hold ddprun on every host)", options_.own_path,
                         said.empty() ? status.to_string() : said);
    }
    const std::string name = is_this_host(options_.hosts[i]) ? "its ddprun" : options_.remote_shell.front();
    const std::string how = fmt::format("{} ended with {}", name, status.to_string());
    return said.empty() ? how : fmt::format("{} ({})", said, how);
  }

  void take(std::size_t i, Hello& hello, TimePoint now) {
    if (parties_[i].answered) return;
    parties_[i].answered = true;
    for (std::size_t other = 0; other < parties_.size(); ++other) {
      if (other != i && parties_[other].answered && parties_[other].hello.identity == hello.identity) {
        log('W', fmt::format("{} and {} are one host ({}): two ddprun share its processors and GPUs",
                             options_.job.hosts[other], options_.job.hosts[i], hello.host));
        break;
      }
    }
    parties_[i].hello = std::move(hello);
    act(job_.on_hello(i, parties_[i].hello, now));
  }
  void take(std::size_t i, Output& output, TimePoint) {
    const bool standard = output.stream == 1;
    write(standard ? out_ : err_, standard ? parties_[i].out : parties_[i].err, output.bytes);
  }
  void take(std::size_t i, End& end, TimePoint now) {
    links_[i].hang_up(now, kShellPatience);
    act(job_.on_end(i, end, now));
  }
  void take(std::size_t, Alive&, TimePoint) {}
  void take(std::size_t, Start&, TimePoint) {}
  void take(std::size_t, Signal&, TimePoint) {}
  void take(std::size_t i, Input&, TimePoint) {
    if (i == 0) input_under_way_ = false;
  }

  bool takes_input() const { return wants_input_ && !input_under_way_ && job_.runs(0); }

  void pass_input() {
    if (!takes_input()) return;
    pollfd ready{STDIN_FILENO, POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) return;
    Input input;
    wants_input_ = read_some(STDIN_FILENO, input.bytes, 64 * 1024);
    if (!input.bytes.empty() || !wants_input_) links_.front().send(input);
    input_under_way_ = !input.bytes.empty();
  }

  // ---- our console ----

  void write(Console& console, int stream, std::string_view bytes) {
    if (!bytes.empty()) console.mixer.feed(stream, bytes, SteadyClock::now(), console.queue);
  }

  void log(char level, const std::string& message) {
    const LogLevel kind = level == 'W' ? LogLevel::warning : LogLevel::info;
    if (!log_enabled(kind)) return;
    write(err_, own_words_,
          internal::format_log_line(std::chrono::system_clock::now(), level, "ddprun", printable(message)));
  }

  void show(TimePoint now) {
    for (Console* console : {&out_, &err_}) {
      if (console->waiting() == 0) {
        console->mixer.flush_idle(now, console->queue);
      } else {
        console->mixer.hold_again(now);  // who waits for our console in the middle of a line has not paused there
      }
      console->flush(now);
    }
  }

  // Ends the shells that are left. A node that lives sees the end of its standard input.
  void close() {
    const auto limit = SteadyClock::now() + kShellPatience;
    for (auto& link : links_) link.hang_up(SteadyClock::now(), kShellPatience);
    const auto open = [this] {
      return std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.is_open(); });
    };
    while (open() && SteadyClock::now() < limit) {
      wait();
      signals_.take();
      for (std::size_t i = 0; i < links_.size(); ++i) hear(i, SteadyClock::now());
      show(SteadyClock::now());
    }
    for (const auto& party : parties_) {
      out_.mixer.finish(party.out, out_.queue);
      err_.mixer.finish(party.err, err_.queue);
    }
  }

  void empty_consoles() {
    const auto limit = SteadyClock::now() + kConsolePatience;
    show(SteadyClock::now());
    while (SteadyClock::now() < limit) {
      std::vector<pollfd> fds;
      for (Console* console : {&out_, &err_}) {
        if (console->takes() && console->waiting() > 0) fds.push_back({console->out.poll_fd(), POLLOUT, 0});
      }
      if (fds.empty()) return;
      ::poll(fds.data(), fds.size(), 100);
      show(SteadyClock::now());
    }
  }

  StarterOptions options_;
  const InheritedSignals& inherited_;
  SignalPipe signals_;
  HostJob job_;
  std::deque<Link> links_;
  std::vector<Party> parties_;
  Console out_, err_;
  int own_words_ = 0;
  Endpoint first_;
  std::vector<std::pair<std::size_t, std::string>> failed_dials_;  // not told yet: act() is on the stack
  TimePoint next_alive_;
  bool finished_ = false, wants_input_ = false, input_under_way_ = false;
};

}  // namespace

bool is_this_host(const Host& host) {
  if (host.name != host.address()) return false;  // another user
  const std::string name = host.address();
  if (name == "localhost") return true;
  if (!is_numeric(name)) {
    const std::string own = host_name();
    return name == own || own.starts_with(name + ".") || name.starts_with(own + ".");
  }
  ListenOptions options;
  options.address = name;
  return tcp_listen(options).has_value();  // only an address of ours can be listened on
}

int start_on_hosts(StarterOptions options, const InheritedSignals& inherited) {
  // Three pipes for each host. What is started gets the limit that we found.
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_cur < descriptors.rlim_max) {
    descriptors.rlim_cur = descriptors.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors);
  }
  std::vector<int> numbers = options.ends_job;
  numbers.insert(numbers.end(), options.only_forward.begin(), options.only_forward.end());
  auto signals = SignalPipe::open(numbers, inherited);
  if (!signals) {
    say("ddprun: " + signals.error().message());
    return exit_code::kFailure;
  }
  return Starter(std::move(options), inherited, std::move(*signals)).run();
}

}  // namespace ddprun::launcher::hosts
