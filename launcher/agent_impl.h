#pragma once

#include <signal.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "common/rdzv_protocol.h"
#include "common/task_group.h"
#include "launcher/agent.h"
#include "launcher/patient_group.h"
#include "launcher/rendezvous_client.h"
#include "launcher/restart_policy.h"

// The inside of Agent, for agent.cc (hosting, joining) and agent_round.cc (one round) only.
namespace ddprun::launcher {

namespace asio = boost::asio;
using std::chrono::milliseconds;

inline constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
inline constexpr milliseconds kLook{500};  // how often states without an event are looked at

// What happens when the workers of this round have been stopped.
struct Again {};
using Verdict = std::variant<Again, JobOutcome>;

struct Stopped {};
struct LeaseExpired {};
struct NobodyThere {};
struct StopRequest {
  int signal = 0;
};
struct Hopeless {
  std::string why;
};
using Event = std::variant<rdzv::ServerMessage, WorkerExit, Stopped, LeaseExpired, NobodyThere, StopRequest, Hopeless>;

bool is_loopback_name(const std::string& host);
JobOutcome outcome_of(JobOutcome::Kind kind, int code, std::string reason);

class Agent::Impl : public std::enable_shared_from_this<Agent::Impl> {
 public:
  Impl(asio::io_context& context, AgentOptions o, Services s, AgentHooks h)
      : io(context),
        options(std::move(o)),
        services(std::move(s)),
        hooks(std::move(h)),
        wake(context),
        tasks(context.get_executor()) {}
  asio::awaitable<JobOutcome> run();
  void stop(int signal);
  void forward(int signal);

  std::string endpoint_text() const { return endpoint.to_string(); }

 private:
  // --- events
  void push(Event event);
  asio::awaitable<std::optional<Event>> next(TimePoint until);

  // --- who hosts
  asio::awaitable<Result<void>> prepare();
  // Whoever can bind the endpoint hosts it; names are not compared.
  asio::awaitable<void> try_to_host();
  // `address` "": any. On success our client connects to ourselves.
  Result<void> host_on(const std::string& address, std::uint16_t port);
  void start_client();

  // --- rounds
  asio::awaitable<JobOutcome> live();

  bool loopback_job() const { return options.standalone || is_loopback_name(options.endpoint.host); }
  bool is_static() const { return options.backend == RendezvousBackend::static_ranks; }
  // The listener of the round's worker store, bound before Join so that its port is sure.
  Result<std::uint16_t> bind_store();
  asio::awaitable<std::variant<rdzv::Assignment, JobOutcome>> join(Round last_round);
  static bool is_literal(const std::string& host);
  JobOutcome unreachable() const;
  static JobOutcome signalled(int signal);
  static JobOutcome ended_well(const rdzv::Finished& finished, const char* how);
  JobOutcome shut_down(rdzv::Shutdown shutdown);
  // News that change nothing here.
  void other(rdzv::ServerMessage& message);

  // --- one round

  struct Current {
    Current(const rdzv::Assignment& a, std::int64_t nproc, milliseconds patience)
        : assignment(a), policy(nproc, patience) {}
    rdzv::Assignment assignment;
    RestartPolicy policy;
    bool started = false;  // the group has been started and must be stopped (drained) once
    bool stopping = false, stopped = false;
    std::optional<Verdict> verdict;
    std::optional<FailureRecord> failure;  // of this node
    bool permanent = false;
    TimePoint started_at;
    TimePoint failed_at;
    std::optional<rdzv::DoneResult> done;
    TimePoint done_at;
    std::optional<std::chrono::milliseconds> die_at;  // boot_time(), as last told to the guard
    bool guard_fired = false;                         // we did not run until that time had passed
    std::optional<TimePoint> kill_at;  // the lease ran out while they were being stopped with more patience
    int signal = 0;                    // that we were told to stop with
    bool operators_wish = false;       // ddpctl stopped the job or drained this node: its outcome is in `verdict`
  };
  asio::awaitable<Verdict> run_round(rdzv::Assignment assignment);
  Result<void> serve_store(const rdzv::Assignment& assignment);
  void start_workers(Current& c);
  asio::awaitable<void> pump_exits();
  void start_failed(Current& c, const Error& error);
  FailureRecord blank_record(const Current& c) const;
  void report_failure(Current& c, FailureRecord record, bool permanent);
  void tell_failure(const Current& c);
  void add_evidence(FailureRecord& record) const;
  // The verdict may have been made before our evidence was complete.
  void add_own_evidence(const Current& c, JobOutcome& outcome) const;
  void begin_stop(Current& c, int signal, milliseconds patience);
  asio::awaitable<void> stop_group(int signal, milliseconds patience);

  asio::awaitable<void> kill_group() { co_await workers->stop(SIGKILL, milliseconds(0)); }
  void handle(Current& c, Event& event);
  void on_exit(Current& c, const WorkerExit& exit);
  void decide(Current& c, const RestartPolicy::Decision& decision, TimePoint at);
  void on_stopped(Current& c);
  bool all_saved() const;  // every worker of this node ended with 75
  JobOutcome after_signal(int signal) const;
  // Never 75: nobody is to start again at once what an operator has stopped.
  void after_operators_wish(JobOutcome& outcome) const;
  void on_lease_expired(Current& c);
  void tell_lease();
  void on_stop_request(Current& c, int signal);
  void on_message(Current& c, rdzv::ServerMessage& message);
  void on_shutdown(Current& c, rdzv::Shutdown shutdown);
  // Nothing happened for a while: is something overdue?
  void look_around(Current& c);

  asio::io_context& io;
  AgentOptions options;
  Services services;
  AgentHooks hooks;
  asio::steady_timer wake;
  TaskGroup tasks;
  std::deque<Event> events;

  Endpoint endpoint;                        // as others know it
  std::optional<Endpoint> client_endpoint;  // as we reach it when we are the host
  std::string self_host;
  std::unique_ptr<RendezvousHost> host;
  std::unique_ptr<RendezvousClient> client;
  std::optional<Listener> listener;
  std::unique_ptr<WorkerStore> store;
  std::unique_ptr<PatientGroup> workers;
  WorkerGroup* group = nullptr;  // of `workers`
  std::unique_ptr<Current> current;
  std::int64_t spawn_number = 0;
};

}  // namespace ddprun::launcher
