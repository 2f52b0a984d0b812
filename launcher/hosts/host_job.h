#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "launcher/hosts/frames.h"

namespace ddprun::launcher::hosts {

struct HostJobOptions {
  std::vector<std::string> hosts;                   // names, for words
  std::size_t min_hosts = 1;                        // fewer: the job cannot be
  bool first_serves = true;                         // the first one serves the rendezvous: without it the job cannot be
  std::chrono::milliseconds start_timeout{60'000};  // for a remote shell until a ddprun answers
  std::chrono::milliseconds silence{30'000};        // of a host, which is lost then
  std::chrono::milliseconds patience{30'000};       // between the first signal and the launchers' SIGKILL
};

// How a host's part ended, for the last word.
struct HostEnd {
  enum class Kind {
    running,   // not yet
    no_start,  // nobody answered: `words` are the remote shell's
    lost,      // it ran, and its shell died or it fell silent: `words` say how
    ended,     // `code`, and what it told
  };
  Kind kind = Kind::running;
  int code = 0;
  std::string words;   // a sentence without the host's name
  std::string report;  // of its ddprun, JSON; "" = none
  int order = 0;       // in which the hosts came to their ends
};

// What the starting host does: who is called when, when the job begins, what a lost host means, and when it is over.
// Pure: events and the time in, actions out.
class HostJob {
 public:
  enum class Do { dial, start, signal, hang_up, finish };
  struct Action {
    Do what;
    std::size_t host = 0;
    int signal = 0;
  };
  using Actions = std::vector<Action>;

  static constexpr std::size_t kDialAtOnce = 64;
  static constexpr std::chrono::milliseconds kMoreWords{2000};    // for what other hosts say of their start
  static constexpr std::chrono::milliseconds kOthersEnd{15'000};  // a node failed: the others know by the rendezvous
  static constexpr std::chrono::milliseconds kAfterPatience{20'000};
  static constexpr std::chrono::milliseconds kImpatience{10'000};

  explicit HostJob(HostJobOptions options);

  Actions begin(TimePoint now);
  Actions on_hello(std::size_t host, const Hello& hello, TimePoint now);
  Actions on_end(std::size_t host, const End& end, TimePoint now);
  void on_heard(std::size_t host, TimePoint now);
  // The remote shell has ended, or what it says is no conversation of ours.
  Actions on_shell_end(std::size_t host, std::string words, TimePoint now);
  Actions on_signal(int number, bool ends_job, TimePoint now);
  Actions tick(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

  bool runs(std::size_t host) const { return parties_[host].state == State::started; }
  bool started() const { return started_; }
  int stopped_by() const { return stopped_by_; }  // the signal that ended the job; 0 = none
  const std::vector<HostEnd>& ends() const { return ends_; }

 private:
  enum class State { queued, dialling, ready, started, over };
  struct Party {
    State state = State::queued;
    TimePoint since, heard;
  };

  bool waiting_for_starts() const;
  std::size_t count(State state) const;
  void over(std::size_t host, HostEnd end, TimePoint now, Actions& out);
  void dial_more(TimePoint now, Actions& out);
  void consider_start(TimePoint now, Actions& out);
  void consider_end(TimePoint now, Actions& out);
  void stop_all(int number, TimePoint now, Actions& out);
  std::size_t of_use() const;  // hosts that may still bring the job to a good end
  bool hopeless() const;

  HostJobOptions options_;
  std::vector<Party> parties_;
  std::vector<HostEnd> ends_;
  bool started_ = false, finished_ = false;
  int stopped_by_ = 0, over_ = 0;
  std::optional<TimePoint> give_up_starting_at_, stop_at_, give_up_at_;
};

}  // namespace ddprun::launcher::hosts
