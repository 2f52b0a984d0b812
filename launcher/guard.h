#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {

// CLOCK_BOOTTIME: time that the machine is suspended counts, unlike SteadyClock's.
std::chrono::milliseconds boot_time();

// A small process beside the launcher that does what is left to do when the launcher is SIGKILLed: it kills every
// session that is registered here, every process that carries our job token in its environment, and removes the
// registered folders. It also kills the workers of a launcher that lives but does not run (stopped, swapped out, on a
// machine that was suspended) when their time is over. It waits on a pipe whose other end only the launcher has, takes
// no signals, holds no descriptor of the user's, and ends with the launcher in every case.
class Guard {
 public:
  // Forks. Call it early in main(): before any thread, socket or big allocation.
  static Result<std::shared_ptr<Guard>> start();
  ~Guard();  // ends it and waits for it
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // Between these two there may be processes with our job token, known to it as sessions or not yet.
  void expect_workers();
  void no_workers_left();
  void add_session(pid_t leader);
  void remove_session(pid_t leader);
  void add_folder(const std::string& path);  // removed with all that is in it
  void remove_folder(const std::string& path);
  void add_cgroup(const std::string& path);  // a v2 control group of ours: killed, then removed
  void remove_cgroup(const std::string& path);
  // All workers are killed then, unless another time is given before; nullopt: never. Time that the machine is
  // suspended counts.
  void kill_workers_at(std::optional<TimePoint> when);

  // "NAME=value" that each worker gets, unique to this launcher's life: how stray descendants are recognised.
  const std::string& job_token() const { return token_; }
  pid_t pid() const { return pid_; }

 private:
  // When the workers die, boot_time() in ms; 0 = never. In memory that both processes share.
  using SharedTime = std::atomic<long long>;
  struct Unmap {
    void operator()(SharedTime* time) const;
  };

  Guard(pid_t pid, UniqueFd pipe, std::string token, std::unique_ptr<SharedTime, Unmap> kill_at)
      : pid_(pid), pipe_(std::move(pipe)), token_(std::move(token)), kill_at_(std::move(kill_at)) {}
  void tell(char verb, const std::string& argument);

  pid_t pid_;
  UniqueFd pipe_;
  std::string token_;
  std::unique_ptr<SharedTime, Unmap> kill_at_;
};

}  // namespace ddprun::launcher
