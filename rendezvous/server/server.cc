#include "rendezvous/server/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "common/rdzv_greeting.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/server/admin_service.h"
#include "rendezvous/server/agent_server.h"
#include "rendezvous/server/job_runner.h"
#include "rendezvous/store/store_service.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

namespace {

Strangers::Limits limits_of(const ServerOptions& options) {
  Strangers::Limits limits;
  limits.time = options.store.setup_timeout;
  // Beyond what a start of thousands of agents needs: descriptors are left for those that are known.
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_cur != RLIM_INFINITY) {
    limits.most = std::max<std::size_t>(64, descriptors.rlim_cur / 4);
  }
  return limits;
}

// Agents of other jobs hear whose this is: it ends with that job, and may be for nobody else.
std::string greeting_of(const ServerOptions& options) {
  return options.embedded ? rdzv::embedded_greeting(options.hosted_for, options.own_run_only) : "daemon";
}

}  // namespace

// The acceptor feeds the store and the agents side by side; both are gone before it.
struct RendezvousServer::Impl {
  Impl(asio::io_context& context, Listener listener, ServerOptions options)
      : io(context),
        acceptor(context, std::move(listener), limits_of(options)),
        store(acceptor, options.store),
        runner(std::make_shared<JobRunner>(context, options.embedded)),
        admin(std::make_shared<AdminService>(
            context, runner->jobs(), options.token,
            [this](Job& job, Actions actions, TimePoint now) { runner->apply(job, std::move(actions), now); })),
        agents(std::make_shared<AgentServer>(acceptor, *runner, admin, greeting_of(options))) {
    if (options.own_run_only) agents->serve_only(options.hosted_for);
    agents->start();
    runner->start(std::move(options.state_file), options.worlds);
  }

  void close() {
    if (closed) return;
    closed = true;
    runner->close();
    store.close();
    acceptor.close();
    admin->close();
    agents->close();
  }

  asio::io_context& io;
  Acceptor acceptor;
  StoreService store;
  std::shared_ptr<JobRunner> runner;
  std::shared_ptr<AdminService> admin;
  std::shared_ptr<AgentServer> agents;
  bool closed = false;
};

RendezvousServer::RendezvousServer(asio::io_context& io, Listener listener, ServerOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(listener), std::move(options))) {}

RendezvousServer::~RendezvousServer() { close(); }

std::uint16_t RendezvousServer::port() const { return impl_->acceptor.port(); }
StoreStats RendezvousServer::store_stats() const { return impl_->store.stats(); }
void RendezvousServer::on_static_round(std::function<void()> hook) { impl_->runner->on_static_round(std::move(hook)); }
void RendezvousServer::close() { impl_->close(); }

void RendezvousServer::clear_store() {
  impl_->acceptor.drop_spoken(Acceptor::kAnyOther);
  impl_->store.clear();
}

std::size_t RendezvousServer::agents() const {
  std::size_t count = 0;
  for (const auto& [id, job] : impl_->runner->jobs()) count += job.connections.size();
  return count;
}

ServerCounters RendezvousServer::counters() const {
  ServerCounters counters = impl_->runner->counters();
  counters.agent_connections = impl_->agents->accepted();
  counters.refused_connections = impl_->agents->refused_count();
  return counters;
}

std::vector<JobStatus> RendezvousServer::jobs() const {
  std::vector<JobStatus> all;
  for (const auto& [id, job] : impl_->runner->jobs()) all.push_back(job.membership.status(SteadyClock::now()));
  return all;
}

asio::awaitable<void> RendezvousServer::say_goodbye() {
  const auto impl = impl_;
  impl->runner->leave();
  impl->acceptor.stop();
  rdzv::Shutdown goodbye;
  goodbye.cause = rdzv::ShutdownCause::daemon_stops;
  goodbye.reason = "the rendezvous was told to stop";
  impl->agents->say_goodbye(goodbye);
  asio::steady_timer poll(impl->io);
  const TimePoint limit = SteadyClock::now() + std::chrono::seconds(2);
  while (!impl->agents->empty() && SteadyClock::now() < limit) {
    poll.expires_after(std::chrono::milliseconds(5));
    constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
    co_await poll.async_wait(as_tuple);
  }
  impl->close();
}

asio::awaitable<void> RendezvousServer::drain(RunId run_id, std::chrono::milliseconds grace) {
  const auto impl = impl_;
  asio::steady_timer poll(impl->io);
  const TimePoint limit = SteadyClock::now() + grace;
  while (!impl->closed && SteadyClock::now() < limit) {
    const auto found = impl->runner->jobs().find(run_id);
    if (found == impl->runner->jobs().end() || found->second.connections.empty()) co_return;
    poll.expires_after(std::chrono::milliseconds(5));
    constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
    co_await poll.async_wait(as_tuple);
  }
}

}  // namespace ddprun::rendezvous
