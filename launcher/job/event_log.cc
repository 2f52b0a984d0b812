#include "launcher/job/event_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace ddprun::launcher {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t unix_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

class EventLog : public JobObserver {
 public:
  explicit EventLog(EventLogOptions options) : options_(std::move(options)), started_(SteadyClock::now()) {}

  void on_round(const RankSlice& round, std::chrono::milliseconds took) override {
    round_ = round;
    if (options_.workers) {
      agent("RENDEZVOUS", took);
      agent("ASSIGN_WORKER_RANKS", std::chrono::milliseconds(0));
    }
    if (!options_.rendezvous) return;
    Json event;
    event["name"] = "torchelastic.rdzv.RUNNING";
    event["source"] = "AGENT";
    event["timestamp"] = unix_milliseconds();
    event["metadata"] = {{"run_id", options_.run_id},
                         {"hostname", options_.host_name},
                         {"rdzv_backend", options_.backend},
                         {"round", round.round.value},
                         {"group_rank", round.group_rank.value},
                         {"group_world_size", round.group_world_size},
                         {"world_size", round.world_size},
                         {"first_rank", round.first_rank.value},
                         {"restart_count", round.restart_count},
                         {"master_endpoint", round.master.to_string()},
                         {"duration_ms", took.count()}};
    write(event);
  }

  void on_start(const WorkerEnv& worker, pid_t pid) override {
    if (options_.workers) of_worker("START", worker, pid, nullptr, nullptr);
  }

  void on_exit(const WorkerEnv& worker, const WorkerExit& exit) override {
    if (!options_.workers) return;
    if (exit.status.success()) {
      of_worker("SUCCEEDED", worker, exit.pid, nullptr, nullptr);
      return;
    }
    // torch writes signals as negative exit codes.
    const int code = exit.status.signal != 0 ? -exit.status.signal : exit.status.code;
    of_worker(exit.stopped_by_us ? "TERMINATED" : "FAILED", worker, exit.pid, code, exit.status.to_string());
  }

  void on_end(const JobOutcome& outcome) override {
    const bool success = outcome.kind == JobOutcome::Kind::success;
    if (options_.workers) agent(success ? "SUCCEEDED" : "FAILED", std::nullopt, outcome.reason);
    if (!options_.rendezvous) return;
    Json event;
    event["name"] = success ? "torchelastic.rdzv.SUCCEEDED" : "torchelastic.rdzv.FAILED";
    event["source"] = "AGENT";
    event["timestamp"] = unix_milliseconds();
    event["metadata"] = {{"run_id", options_.run_id},
                         {"hostname", options_.host_name},
                         {"rdzv_backend", options_.backend},
                         {"exit_code", outcome.exit_code},
                         {"raw_error", outcome.reason.empty() ? Json() : Json(outcome.reason)}};
    write(event);
  }

 private:
  void agent(const char* state, std::optional<std::chrono::milliseconds> took, const std::string& error = "") {
    Json details = {{"group_world_size", round_.group_world_size}, {"entry_point", options_.entrypoint}};
    auto event = record(state, "AGENT", nullptr, nullptr, error.empty() ? Json() : Json(error), details);
    if (took) event["metadata"]["duration_ms"] = took->count();
    write(event);
  }

  void of_worker(const char* state, const WorkerEnv& worker, pid_t pid, const Json& exit_code, const Json& error) {
    Json details = {{"group_world_size", round_.group_world_size}, {"entry_point", options_.entrypoint}};
    const auto list = [](const Json& value) { return Json::array({value}); };  // as torch has it
    details["local_rank"] = list(worker.local_rank.value);
    details["role_rank"] = list(worker.role_rank);
    details["role_world_size"] = list(worker.slice.role_world_size);
    details["exit_code"] = list(exit_code);
    details["worker_pid"] = list(pid);
    write(record(state, "WORKER", worker.rank.value, std::to_string(pid), error, details));
  }

  Json record(const char* state, const char* source, const Json& rank, const Json& worker_id, const Json& error,
              const Json& details) const {
    Json event;
    event["name"] = fmt::format("torchelastic.worker.status.{}", state);
    event["source"] = source;
    event["timestamp"] = unix_milliseconds();
    Json& metadata = event["metadata"];
    metadata["run_id"] = options_.run_id;
    metadata["global_rank"] = rank;
    metadata["group_rank"] = round_.group_rank.value;
    metadata["worker_id"] = worker_id;
    metadata["role"] = options_.role;
    metadata["hostname"] = options_.host_name;
    metadata["state"] = state;
    metadata["total_run_time"] =
        std::chrono::duration_cast<std::chrono::seconds>(SteadyClock::now() - started_).count();
    metadata["rdzv_backend"] = options_.backend;
    metadata["raw_error"] = error;
    metadata["metadata"] = details.dump();
    metadata["agent_restarts"] = round_.restart_count;
    metadata["duration_ms"] = nullptr;
    return event;
  }

  void write(const Json& event) const { options_.write(event.dump(-1, ' ', true, Json::error_handler_t::replace)); }

  EventLogOptions options_;
  TimePoint started_;
  RankSlice round_;
};

}  // namespace

std::unique_ptr<JobObserver> make_event_log(EventLogOptions options) {
  return std::make_unique<EventLog>(std::move(options));
}

void AttemptLog::on_round(const RankSlice& round, std::chrono::milliseconds) {
  close("workers were stopped for a new round");
  AttemptRecord record;
  record.restart_count = round.restart_count;
  record.round = round.round;
  attempts_.push_back(std::move(record));
  started_ = SteadyClock::now();
}

void AttemptLog::on_start(const WorkerEnv&, pid_t) {}

void AttemptLog::on_exit(const WorkerEnv& worker, const WorkerExit& exit) {
  if (exit.status.success() || exit.stopped_by_us) return;
  close(fmt::format("rank {} ended with {}", worker.rank.value, exit.status.to_string()));
}

void AttemptLog::on_end(const JobOutcome& outcome) {
  close(outcome.kind == JobOutcome::Kind::success ? "succeeded" : outcome.reason.empty() ? "failed" : outcome.reason);
}

// The first thing that ends an attempt names it.
void AttemptLog::close(const std::string& outcome) {
  if (attempts_.empty() || !attempts_.back().outcome.empty()) return;
  attempts_.back().outcome = outcome;
  ended_at_ = SteadyClock::now();
  attempts_.back().lasted = std::chrono::duration_cast<std::chrono::milliseconds>(*ended_at_ - started_);
  attempts_.back().ended_unix_time =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
}

}  // namespace ddprun::launcher
