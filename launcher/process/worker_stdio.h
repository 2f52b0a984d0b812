#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "common/worker_env.h"
#include "launcher/output/log_tree.h"
#include "launcher/output/output_hub.h"
#include "launcher/process/worker_group.h"

namespace ddprun::launcher {

// Standard input, output and error of one worker.
struct WorkerStdio {
  struct Side {
    UniqueFd theirs;      // for the worker; closed here once it runs
    bool pumped = false;  // `stream` goes to the hub
    OutputHub::Stream stream;
    int hub_id = -1;
    std::string recent;       // its last bytes, from the hub
    std::string direct_path;  // the worker writes this file itself
    std::vector<std::string> last_lines(std::size_t count) const;
  };
  int stdin_fd = -1;  // not owned; -1 = the null device
  Side out, err;
  std::vector<std::string> log_paths;

  void start_pumps(OutputHub& hub);  // after the worker has been started
  std::vector<int> hub_ids() const;
  void take_recent(int hub_id, std::string recent);
};

// Opens them for the workers of one attempt.
class AttemptStdio {
 public:
  // Errors: system (a filter's file cannot be made).
  static Result<AttemptStdio> make(const WorkerGroupOptions& options, const OutputHub& hub, AttemptFolder folder);
  Result<WorkerStdio> open(const WorkerEnv& env) const;

 private:
  AttemptStdio(const WorkerGroupOptions& options, const OutputHub& hub, AttemptFolder folder)
      : options_(&options), hub_(&hub), folder_(std::move(folder)) {}
  Result<void> open_side(const WorkerEnv& env, bool is_stderr, WorkerStdio& stdio) const;

  const WorkerGroupOptions* options_;
  const OutputHub* hub_;
  AttemptFolder folder_;
  std::shared_ptr<LineFilter> stdout_filter_, stderr_filter_;
};

}  // namespace ddprun::launcher
