#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "launcher/hosts/frames.h"
#include "launcher/hosts/pipes.h"
#include "launcher/process/process.h"

namespace ddprun::launcher::hosts {

// A remote shell and the conversation over it. Never waits.
class Link {
 public:
  // Starts the shell. Errors: not_found, not_executable, exhausted, system.
  Result<void> open(const std::vector<std::string>& command, const InheritedSignals& inherited);
  ~Link();
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  bool is_open() const { return pid_ >= 0; }
  void send(const Message& message);
  bool has_to_send() const { return in_ && !to_send_.empty(); }

  // What poll(2) should look at; -1 = nothing any more.
  int out_fd() const { return out_.get(); }
  int err_fd() const { return err_.get(); }
  int in_fd() const { return in_.get(); }

  void flush();
  // Reads the shell's standard output. `messages` gets what came. Errors: malformed.
  Result<void> read(std::vector<Message>& messages);
  // Reads its standard error: what the shell itself says (a node's words come in messages).
  std::string read_words();

  // The shell's end: how it ended, once it has and all that it wrote is read, or 1 s after it has.
  std::optional<ExitStatus> poll_end(TimePoint now);
  // The last line of what the shell said, or of what a login script printed; "" = nothing.
  std::string last_words() const;
  // Nobody needs it any more: its standard input ends; killed with its group after `patience`.
  void hang_up(TimePoint now, std::chrono::milliseconds patience);
  void kill_if_due(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

 private:
  pid_t pid_ = -1;
  UniqueFd in_, out_, err_;
  FrameReader reader_{true};
  std::string to_send_, words_;
  bool ended_ = false;  // a zombie as yet, so that the number of its group stays its own
  std::optional<TimePoint> drained_at_, kill_at_;
};

}  // namespace ddprun::launcher::hosts
