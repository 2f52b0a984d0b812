#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "launcher/output/log_tree.h"

namespace ddprun::launcher {

// CLOCK_BOOTTIME: time that the machine is suspended counts, unlike SteadyClock's.
std::chrono::milliseconds boot_time();

// What is to be done when the launcher is gone.
struct GuardDuties {
  std::string token;                             // of the attempt whose workers there may be; "" = there are none
  long long generation = 0;                      // of that attempt
  std::map<pid_t, unsigned long long> sessions;  // leaders, with their start times
  std::set<std::string> folders, cgroups;
};

// A small process beside the launcher that does what is left to do when the launcher is SIGKILLed: it kills every
// session that is registered here, every process that carries the attempt's token in its environment, and removes the
// registered folders. Processes that clean up after the others (is_tracker()) are left to do so first. It also kills
// the workers of a launcher that lives but does not run (stopped, swapped out, on a machine that was suspended) when
// their time is over; never those of a later attempt. It waits on a pipe whose other end only the launcher has, takes
// no signals, holds no descriptor of the user's, and ends with the launcher in every case.
class Guard : public FolderKeeper {
 public:
  // Forks. Errors: exhausted (a limit on processes or descriptors), system.
  static Result<std::shared_ptr<Guard>> start();
  ~Guard() override;  // ends it and waits for it
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // From now on there may be workers of a new attempt, known to it as sessions or not yet. Returns their token,
  // "NAME=value", that each gets (or that and "." and more): how stray descendants are recognised.
  std::string expect_workers();
  void no_workers_left();
  void add_session(pid_t leader);  // not reaped yet
  void remove_session(pid_t leader);
  void add_folder(const std::string& path) override;
  void remove_folder(const std::string& path) override;
  void add_cgroup(const std::string& path);  // a v2 control group of ours: killed, then removed
  void remove_cgroup(const std::string& path);
  // All workers of this attempt are killed then, unless another time is given before; nullopt: never. Time that the
  // machine is suspended counts.
  void kill_workers_at(std::optional<TimePoint> when);

  pid_t pid() const { return pid_; }
  // Somebody may have killed it (an operator, the kernel for memory): then it is reaped and started again, with all
  // that it knew, and the log says so once. Call it when a child has ended.
  void look_after();

 private:
  // In memory that both processes share.
  struct Shared {
    std::atomic<long long> kill_at_ms{0};  // boot_time(); 0 = never
    std::atomic<long long> generation{0};  // whose workers are meant
  };
  struct Unmap {
    void operator()(Shared* shared) const;
  };

  Guard(std::string token, std::unique_ptr<Shared, Unmap> shared)
      : token_(std::move(token)), shared_(std::move(shared)) {}
  Result<void> fork_it();
  void replace(const char* why);
  void tell(char verb, const std::string& argument);
  [[noreturn]] static void live(int pipe, const Shared& shared, const GuardDuties& duties) noexcept;
  [[noreturn]] static void keep_guard(int pipe, const Shared& shared, GuardDuties duties);
  static void ring(int alarm, const Shared& shared, const GuardDuties& duties);

  pid_t pid_ = -1;
  UniqueFd pipe_;
  std::string token_;  // of this launcher's life
  std::unique_ptr<Shared, Unmap> shared_;
  GuardDuties duties_;  // as the process knows them, for one that takes its place
  int replaced_ = 0;
};

}  // namespace ddprun::launcher
