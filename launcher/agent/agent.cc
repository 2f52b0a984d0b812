#include "launcher/agent/agent.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <functional>
#include <utility>

#include "common/exit_code.h"
#include "common/log.h"
#include "common/rdzv_protocol.h"
#include "common/system.h"
#include "common/task_group.h"
#include "launcher/agent/hosting.h"
#include "launcher/agent/rendezvous_client.h"
#include "launcher/life/node_life.h"
#include "launcher/life/node_words.h"
#include "launcher/process/guard.h"

// Turns what happens into events of NodeLife, and its actions into deeds. Decides nothing about the node's life.
namespace ddprun::launcher {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
constexpr milliseconds kFlush{1'000};
// How much later than NodeLife's patience somebody else kills the workers, should we be stopped ourselves. Both are
// part of Membership::kLostMargin.
constexpr milliseconds kGuardDelay{500};
// Woken this much later than planned, we did not run meanwhile (SIGSTOP, a debugger, a suspended machine).
constexpr milliseconds kOverslept{1'000};
// We look at the clock at least this often, to notice that.
constexpr milliseconds kLook{5'000};
constexpr milliseconds kSpinPause{1'000};

static_assert(kKillLimit > kWorkerKillLimit);  // else the machine ends before the group has said who is stuck

LogLevel level_of(Say::Tone tone) {
  switch (tone) {
    case Say::Tone::info:
      return LogLevel::info;
    case Say::Tone::warning:
      return LogLevel::warning;
    case Say::Tone::error:
      break;
  }
  return LogLevel::error;
}

StartFailed start_failed(const Error& error, Round round) {
  StartFailed failed;
  failed.round = round;
  failed.why = error.message();
  failed.permanent = true;
  switch (error.code()) {
    case Errc::not_found:
      failed.exit_code = exit_code::kProgramNotFound;
      break;
    case Errc::not_executable:
      failed.exit_code = exit_code::kNotExecutable;
      break;
    case Errc::unsupported:
      failed.exit_code = exit_code::kPermanent;
      break;
    case Errc::invalid_argument:
      failed.exit_code = exit_code::kUsage;
      break;
    default:  // a limit, or a moment's trouble of the system
      failed.exit_code = exit_code::kFailure;
      failed.permanent = false;
      break;
  }
  return failed;
}

}  // namespace

class Agent::Impl : public WorkerGroupListener, public std::enable_shared_from_this<Agent::Impl> {
 public:
  Impl(asio::io_context& io, AgentOptions options, Services services, AgentHooks hooks)
      : io_(io),
        options_(std::move(options)),
        hooks_(std::move(hooks)),
        wake_(io),
        tasks_(io.get_executor()),
        hosting_(io, options_, std::move(services)),
        host_(host_name()),
        life_(options_, host_) {}

  asio::awaitable<JobOutcome> run() {
    auto prepared = co_await hosting_.prepare();
    if (!prepared) co_return not_prepared(prepared.error());
    start_client();
    co_await live();
    hosting_.stop_looking();
    tasks_.stop();
    co_await tasks_.join();
    co_await client_->close(kFlush);
    const bool all_know =
        outcome_->kind != JobOutcome::Kind::signalled && outcome_->kind != JobOutcome::Kind::cannot_start;
    if (all_know) co_await hosting_.drain();
    hosting_.close();
    group_.reset();
    client_.reset();
    co_return std::move(*outcome_);
  }

  void stop(int signal) {
    hosting_.stop_looking();
    push(StopRequest{signal});
  }
  void forward(int signal) {
    if (group_) group_->forward(signal);
  }
  std::string endpoint_text() const { return hosting_.endpoint().to_string(); }

  void on_start(const WorkerEnv&, pid_t) override {}
  void on_exit(const WorkerEnv&, const WorkerExit& exit) override;
  void on_drained() override;

 private:
  JobOutcome not_prepared(const Error& error) const;
  void start_client();
  void on_message(rdzv::ServerMessage message);
  asio::awaitable<void> host_instead();

  void push(NodeEvent event);
  asio::awaitable<void> live();
  asio::awaitable<void> wait_until(TimePoint limit);
  TimePoint next_look();
  void feed_link();

  void perform(NodeActions actions);
  void act(const BindAndJoin& join);
  void act(const AcceptRound& accept);
  void act(const StartWorkers& start);
  void act(const AskToStop& ask);
  void act(const Kill& kill) { group_->kill(kill.worker); }
  void act(const DrainWorkers&) { group_->drain(); }
  void act(const HurryDrain&) { group_->hurry(); }
  void act(const EndHelpers& end) { group_->end_helpers(end.signal); }
  void act(const TellDone& tell) { client_->done(tell.result); }
  void act(const TellFailure& tell);
  void act(const TellLeave& tell) { client_->leave(tell.reason); }
  void act(const Say& say) { log_write(level_of(say.tone), say.text); }
  void act(const End& end);

  FailureRecord with_evidence(FailureRecord record) const;
  void tell_lease();

  asio::io_context& io_;
  AgentOptions options_;
  AgentHooks hooks_;
  asio::steady_timer wake_;
  TaskGroup tasks_;
  Hosting hosting_;
  std::string host_;
  NodeLife life_;
  std::deque<NodeEvent> events_;
  std::unique_ptr<RendezvousClient> client_;
  std::unique_ptr<WorkerGroup> group_;
  std::optional<JobOutcome> outcome_;

  std::uint16_t store_port_ = 0;
  Round attempt_;                            // whose workers the group has, or had
  std::optional<StartFailed> start_failed_;  // told when what it left is gone
  std::optional<FailureRecord> told_;        // this node's failure, as the rendezvous heard of it
  bool may_live_ = false;                    // as tell_lease() last found it
  std::optional<milliseconds> die_at_;       // boot_time(), as last told to the guard
  bool guard_fired_ = false;                 // we did not run until that time had passed
  bool link_changed_ = false;
  bool looking_for_host_ = false;
  bool said_spin_ = false;
};

// --- the rendezvous -----------------------------------------------------------------------------------------------

JobOutcome Agent::Impl::not_prepared(const Error& error) const {
  for (const NodeEvent& event : events_) {
    if (const auto* request = std::get_if<StopRequest>(&event)) return signalled_outcome(request->signal);
  }
  const bool usage = error.code() == Errc::invalid_argument;
  return outcome_of(JobOutcome::Kind::cannot_start, usage ? exit_code::kUsage : exit_code::kFailure, error.message());
}

void Agent::Impl::start_client() {
  ClientOptions client;
  client.endpoint = hosting_.client_endpoint();
  if (!hosting_.hosting()) client.ports = options_.endpoint_ports;
  client.waiting_hint = hosting_.waiting_hint();
  client.read_timeout = options_.read_timeout;
  rdzv::NodeInfo& node = client.node;
  node.run_id = options_.run_id;
  node.node_id = NodeId(random_hex(16));
  client.session_key = random_hex(16);
  node.host = host_;
  node.address = hosting_.own_address();
  node.role = options_.role;
  node.topology_key = options_.topology_key;
  node.nproc = options_.nproc;
  node.node_rank = options_.node_rank;
  if (options_.job.backend == RdzvBackend::static_ranks) node.node_rank = options_.node_rank.value_or(0);
  node.job = options_.job;
  ClientEvents events;
  events.on_message = [this](rdzv::ServerMessage message) { on_message(std::move(message)); };
  events.on_link = [this] {
    link_changed_ = true;
    wake_.cancel();
  };
  events.on_lease_expired = [this] {
    // Where the rendezvous is in this process its silence means that we did not run, so nor did it.
    if (!hosting_.hosting()) push(LeaseOver());
  };
  events.on_lease = [this](TimePoint) { tell_lease(); };
  events.on_nobody_there = [this] { tasks_.spawn(host_instead()); };
  events.on_hopeless = [this](const Error& error) { push(Hopeless{error.message()}); };
  client_ = std::make_unique<RendezvousClient>(io_, std::move(client), std::move(events));
  client_->start();
}

asio::awaitable<void> Agent::Impl::host_instead() {
  if (looking_for_host_) co_return;
  looking_for_host_ = true;
  // A look-up takes its time; meanwhile we may have found a rendezvous, or ended.
  const std::function<bool()> still_wanted = [this] {
    return client_->replaceable() && (life_.joining() || client_->ever_useful());
  };
  co_await hosting_.try_to_host(still_wanted);
  looking_for_host_ = false;
  if (!hosting_.hosting()) co_return;
  client_->set_endpoint(hosting_.client_endpoint());
  // Its silence is ours from now on.
  if (die_at_ && hooks_.workers_die_at) hooks_.workers_die_at(std::nullopt);
  die_at_.reset();
}

void Agent::Impl::on_message(rdzv::ServerMessage message) {
  if (auto* notice = std::get_if<rdzv::Notice>(&message)) {
    log_write(notice->kind == rdzv::NoticeKind::spare ? LogLevel::warning : LogLevel::info,
              "rendezvous: " + notice->text);
  } else if (auto* request = std::get_if<rdzv::FlightRequest>(&message)) {
    rdzv::FlightReply reply;
    reply.id = request->id;
    if (hooks_.flight_record) reply.bytes = hooks_.flight_record(request->max_bytes);
    client_->send_flight(std::move(reply));
  } else {
    if (auto* assignment = std::get_if<rdzv::Assignment>(&message)) {
      assignment->master = hosting_.master(*assignment, client_->server_address());
    }
    push(std::move(message));
  }
}

void Agent::Impl::feed_link() {
  link_changed_ = false;
  Link link;
  link.useless_since = client_->disconnected_since();
  link.useful = client_->last_useful();
  link.embedded = client_->server_is_embedded();
  link.problem = client_->last_problem();
  life_.on(link, SteadyClock::now());
}

// --- events -------------------------------------------------------------------------------------------------------

void Agent::Impl::push(NodeEvent event) {
  events_.push_back(std::move(event));
  wake_.cancel();
}

void Agent::Impl::on_exit(const WorkerEnv&, const WorkerExit& exit) {
  WorkerEnded ended;
  ended.round = attempt_;
  ended.end.worker = exit.local_rank;
  ended.end.pid = exit.pid;
  ended.end.code = exit.status.code;
  ended.end.signal = exit.status.signal;
  ended.end.asked = exit.stopped_by_us;
  ended.end.at = exit.at;
  ended.end.time = exit.time;
  ended.after_guard = guard_fired_ || (die_at_ && boot_time() >= *die_at_);
  push(ended);
}

void Agent::Impl::on_drained() {
  if (start_failed_) {
    push(*std::exchange(start_failed_, std::nullopt));
  } else {
    push(WorkersDrained{attempt_});
  }
}

// When the machine has to be looked at again.
TimePoint Agent::Impl::next_look() {
  const TimePoint now = SteadyClock::now();
  const auto due = life_.next_deadline();
  if (!due) return now + kLook;
  if (*due > now) return std::min(*due, now + kLook);
  // A deadline that tick() leaves in the past is a mistake of ours; it must not make this process spin.
  if (!std::exchange(said_spin_, true)) {
    log_error("a deadline of the phase '{}' has passed and changes nothing; please report this", life_.phase());
  }
  return now + kSpinPause;
}

asio::awaitable<void> Agent::Impl::wait_until(TimePoint limit) {
  if (!events_.empty() || link_changed_) co_return;
  wake_.expires_at(limit);
  co_await wake_.async_wait(kAsTuple);
}

asio::awaitable<void> Agent::Impl::live() {
  perform(life_.begin(SteadyClock::now()));
  while (!outcome_) {
    const TimePoint planned = next_look();
    co_await wait_until(planned);
    const TimePoint now = SteadyClock::now();
    if (now > planned + kOverslept) {
      log_debug("this process did not run for {} ms", std::chrono::duration_cast<milliseconds>(now - planned).count());
      life_.on(Paused{now - planned}, now);
    }
    feed_link();
    while (!events_.empty() && !outcome_) {
      const NodeEvent event = std::move(events_.front());
      events_.pop_front();
      perform(life_.on(event, SteadyClock::now()));
    }
    if (!outcome_) perform(life_.tick(SteadyClock::now()));
  }
}

// --- deeds --------------------------------------------------------------------------------------------------------

void Agent::Impl::perform(NodeActions actions) {
  for (const NodeAction& action : actions) {
    std::visit([this](const auto& deed) { act(deed); }, action);
  }
  if (life_.workers_may_live() != may_live_) tell_lease();
}

void Agent::Impl::act(const BindAndJoin& join) {
  if (!join.again || store_port_ == 0) {
    auto port = hosting_.bind_store();
    if (!port) return push(JoinFailed{port.error().message()});
    store_port_ = *port;
  }
  client_->join(join.last_round, store_port_);
}

void Agent::Impl::act(const AcceptRound& accept) {
  const Round round = accept.assignment.round;
  auto served = hosting_.serve_store(accept.assignment);
  client_->assigned(accept.assignment);
  if (!served) return push(start_failed(served.error(), round));
  push(RoundAccepted{round});
}

void Agent::Impl::act(const StartWorkers& start) {
  attempt_ = start.assignment.round;
  told_.reset();
  auto specs = hooks_.make_specs(start.assignment);
  if (!specs) return push(start_failed(specs.error(), attempt_));
  if (!group_) {
    group_ = hooks_.make_group();
    group_->add_listener(this);
  }
  hosting_.release_master_port();
  auto started = group_->start(std::move(*specs));
  if (started) return push(WorkersStarted{attempt_});
  start_failed_ = start_failed(started.error(), attempt_);
  group_->drain();
}

void Agent::Impl::act(const AskToStop& ask) { group_->ask_to_stop(ask.worker, ask.signal, ask.scope); }

void Agent::Impl::act(const TellFailure& tell) {
  rdzv::Failure failure;
  failure.age = std::chrono::duration_cast<milliseconds>(SteadyClock::now() - tell.at);
  failure.permanent = tell.permanent;
  failure.quick = tell.quick;
  failure.record = with_evidence(tell.record);
  told_ = failure.record;
  client_->failed(std::move(failure));
}

// The verdict may have been made before our evidence was complete.
void Agent::Impl::act(const End& end) {
  JobOutcome outcome = end.outcome;
  if (told_) {
    const FailureRecord own = with_evidence(*told_);
    const auto complete = [&own](FailureRecord& record) {
      if (record.round != own.round || record.rank != own.rank) return;
      const auto time = record.unix_time;
      record = own;
      record.unix_time = time;
    };
    for (FailureRecord& record : outcome.failures) complete(record);
    if (outcome.root_cause) complete(*outcome.root_cause);
  }
  outcome_ = std::move(outcome);
}

FailureRecord Agent::Impl::with_evidence(FailureRecord record) const {
  if (!group_ || !record.message.empty() || record.round != attempt_) return record;
  WorkerEvidence evidence = group_->evidence(record.local_rank);
  record.last_lines = std::move(evidence.last_lines);
  record.error_file_json = std::move(evidence.error_file_json);
  record.log_paths = std::move(evidence.log_paths);
  record.out_of_memory = evidence.out_of_memory;
  return record;
}

// If we are stopped (SIGSTOP, a debugger, a suspended machine) nobody looks at the lease here. Where the rendezvous is
// in this process it is stopped as well, and no other world can form.
void Agent::Impl::tell_lease() {
  may_live_ = life_.workers_may_live();
  if (!hooks_.workers_die_at || hosting_.hosting() || options_.on_silence == OnSilence::keep) return;
  std::optional<TimePoint> when;
  if (may_live_) {
    const milliseconds now = boot_time();  // the guard's clock: it goes on in a suspended machine
    if (die_at_ && now >= *die_at_) guard_fired_ = true;
    when = client_->lease_end() + kSilencePatience + kGuardDelay;
    die_at_ = now + std::chrono::ceil<milliseconds>(*when - SteadyClock::now());
  } else {
    die_at_.reset();
    guard_fired_ = false;
  }
  hooks_.workers_die_at(when);
}

// --- the outside --------------------------------------------------------------------------------------------------

Agent::Agent(asio::io_context& io, AgentOptions options, Services services, AgentHooks hooks)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(services), std::move(hooks))) {}

Agent::~Agent() = default;

asio::awaitable<JobOutcome> Agent::run() { return impl_->run(); }
void Agent::stop(int signal) { impl_->stop(signal); }
void Agent::forward(int signal) { impl_->forward(signal); }
std::string Agent::rendezvous_endpoint() const { return impl_->endpoint_text(); }

}  // namespace ddprun::launcher
