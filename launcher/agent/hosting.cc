#include "launcher/agent/hosting.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/log.h"
#include "launcher/agent/node_address.h"

namespace ddprun::launcher {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds kDrain{10'000};
constexpr std::chrono::milliseconds kLookup{10'000};

bool is_ours(const std::string& address) {
  ListenOptions probe;  // any port
  probe.address = address;
  return tcp_listen(probe).has_value();
}

}  // namespace

Hosting::Hosting(asio::io_context& io, AgentOptions options, Services services)
    : io_(io), options_(std::move(options)), services_(std::move(services)), lookup_(io), endpoint_(options_.endpoint) {
  if (options_.standalone || endpoint_.host == "localhost") endpoint_.host = "127.0.0.1";
}

Hosting::~Hosting() = default;

Endpoint Hosting::client_endpoint() const { return client_endpoint_.value_or(endpoint_); }

std::string Hosting::own_address() const {
  if (!master_name_.empty()) return master_name_;
  return options_.local_addr.empty() ? store_address_ : std::string(without_zone(options_.local_addr));
}

std::string Hosting::waiting_hint() const {
  if (one_node() || !(is_loopback(endpoint_.host) || is_unspecified(endpoint_.host))) return "";
  const std::string what = is_unspecified(endpoint_.host) ? "no address of one host" : "a loopback address";
  return "; the endpoint " + endpoint_.to_string() + " is " + what + ", which reaches this host only: nodes on other " +
         "hosts need a name or an address of the one that serves (" +
         (is_static() ? "--master-addr" : "--rdzv-endpoint") + ", the same on every node)";
}

asio::awaitable<Result<void>> Hosting::prepare() {
  if (is_link_local(endpoint_.host) && zone_of(endpoint_.host).empty()) {
    co_return Error(Errc::invalid_argument,
                    "the endpoint " + endpoint_.to_string() + " is a link-local address: say by which interface of " +
                        "this host it is reached, as " + endpoint_.host + "%eth0, on each node its own");
  }
  if (options_.standalone) {
    auto hosted = host_on(endpoint_.host);
    if (!hosted) co_return hosted;
  } else if (is_static()) {
    if (options_.node_rank.value_or(0) != 0) co_return Result<void>();
    auto hosted = must_host("--node-rank=0 serves " + endpoint_.to_string());
    if (!hosted) co_return hosted;
    co_await choose_master_name();
    co_return Result<void>();
  } else if (options_.is_host.value_or(false)) {
    auto hosted = must_host("--rdzv-conf is_host=1");
    if (!hosted) co_return hosted;
  } else {
    co_await try_to_host();
  }
  auto chosen = co_await choose_store_address();
  co_return chosen;
}

// The endpoint's name may be a service's that is no address of this host, so any address will do.
Result<void> Hosting::must_host(const std::string& why) {
  auto hosted = host_on(one_node() && is_loopback(endpoint_.host) ? endpoint_.host : "");
  if (!hosted) return std::move(hosted).error().with_context(why);
  return Result<void>();
}

asio::awaitable<void> Hosting::try_to_host() { return try_to_host(nullptr); }

asio::awaitable<void> Hosting::try_to_host(std::function<bool()> still_wanted) {
  if (host_ || is_static() || options_.is_host.has_value()) co_return;
  std::string address = endpoint_.host;
  if (is_loopback(address)) {
    if (!one_node()) address.clear();
  } else if (!is_numeric(address)) {
    const auto found = co_await look_up(address);
    if (!found) co_return;  // the client tells
    const auto ours = std::find_if(found->begin(), found->end(), is_ours);
    if (ours == found->end()) co_return;
    // Other hosts may know the name by another address of ours (127.0.1.1 in Debian's hosts file).
    address = one_node() && is_loopback(*ours) ? *ours : "";
  }
  if (host_ || (still_wanted && !still_wanted())) co_return;
  auto hosted = host_on(address);
  if (!hosted) log_debug("not the host of {}: {}", endpoint_.to_string(), hosted.error().message());
}

asio::awaitable<Result<Lookup::Addresses>> Hosting::look_up(std::string host) {
  const auto limit = std::min(options_.job.join_timeout, kLookup);
  auto found = co_await lookup_.ask(std::move(host), limit);
  if (!found) log_debug("{}", found.error().message());
  co_return found;
}

void Hosting::stop_looking() { lookup_.cancel(); }

Result<void> Hosting::host_on(const std::string& address) {
  ListenOptions listen;
  listen.address = address;
  listen.port = endpoint_.port;
  listen.first_port = options_.first_port;
  listen.last_port = options_.last_port;
  auto bound =
      services_.bound && services_.bound->fd ? Result<Listener>(std::move(*services_.bound)) : tcp_listen(listen);
  if (!bound) return std::move(bound).error();
  auto made =
      services_.host_rendezvous(io_, std::move(*bound), HostedFor{options_.run_id, options_.serve_own_run_only});
  if (!made) return std::move(made).error();
  host_ = std::move(*made);
  hosted_on_ = address;
  endpoint_.port = host_->port();
  client_endpoint_ = endpoint_;
  client_endpoint_->host = address.empty() ? "127.0.0.1" : address;
  log_info("hosting the rendezvous endpoint={}", endpoint_.to_string());
  return Result<void>();
}

// The store of a job of one node listens where MASTER_ADDR says, and on loopback if the endpoint is there.
asio::awaitable<Result<void>> Hosting::choose_store_address() {
  if (!one_node()) co_return Result<void>();
  const std::string& own = options_.local_addr;
  if (own.empty()) {
    const std::string& host = host_ ? hosted_on_ : endpoint_.host;
    if (is_loopback(host)) store_address_ = host;
    co_return Result<void>();
  }
  store_address_ = own;
  if (is_numeric(own)) co_return Result<void>();
  auto found = co_await look_up(own);
  if (!found) co_return std::move(found).error().with_context("--local-addr");
  const auto ours = std::find_if(found->begin(), found->end(), is_ours);
  if (ours == found->end()) {
    co_return Error(Errc::invalid_argument,
                    "--local-addr: '" + own + "' is " + found->front() + ", which is no address of this host");
  }
  store_address_ = *ours;
  co_return Result<void>();
}

// MASTER_ADDR of all nodes is the endpoint's host if that is an address, or a name that means us for everybody. What is
// loopback here means another host there: the rendezvous then says at which address the others have reached it.
asio::awaitable<void> Hosting::choose_master_name() {
  const std::string host = endpoint_.host;
  if (is_loopback(host)) {
    if (one_node()) master_name_ = host;
    co_return;
  }
  if (is_unspecified(host)) co_return;  // others reach us by what they were given
  if (is_numeric(host)) {
    master_name_ = without_zone(host);
    co_return;
  }
  const auto found = co_await look_up(host);
  if (!found) co_return;
  const bool ours = std::any_of(found->begin(), found->end(), is_ours);
  const bool loopback = std::any_of(found->begin(), found->end(), is_loopback);
  if (ours && (one_node() || !loopback)) master_name_ = host;
}

Result<std::uint16_t> Hosting::bind_store() {
  if (is_static()) return std::uint16_t{0};
  if (store_ && options_.master_port) {  // the same port is kept over restarts
    store_->hold();
    return store_->port();
  }
  store_.reset();
  listener_.reset();  // of a round whose workers never started
  ListenOptions listen;
  listen.address = store_address_;
  listen.port = options_.master_port.value_or(0);
  listen.first_port = options_.first_port;
  listen.last_port = options_.last_port;
  auto bound = tcp_listen(listen);
  if (!bound && options_.master_port && options_.job.nnodes_max > 1) {
    log_warning("--master-port={} cannot be used here ({}): another port is chosen", *options_.master_port,
                bound.error().message());
    listen.port = 0;
    bound = tcp_listen(listen);
  }
  if (!bound) return std::move(bound).error().with_context("the workers' store");
  listener_ = std::move(*bound);
  return listener_->port;
}

Result<void> Hosting::serve_store(const rdzv::Assignment& assignment) {
  if (is_static()) return Result<void>();
  if (assignment.group_rank.value != 0) {
    store_.reset();
    listener_.reset();
    return Result<void>();
  }
  if (!options_.serve_worker_store) return Result<void>();  // release_master_port()
  if (store_) {                                             // the kept port
    store_->serve();
    return Result<void>();
  }
  auto made = services_.make_worker_store(io_, std::move(*listener_));
  listener_.reset();
  if (!made) return std::move(made).error();
  store_ = std::move(*made);
  return Result<void>();
}

void Hosting::release_master_port() { listener_.reset(); }

Endpoint Hosting::master(const rdzv::Assignment& assignment, const std::string& server_address) const {
  MasterView view;
  view.static_ranks = is_static();
  view.hosting = hosting();
  view.announced = assignment.master.host;
  view.endpoint_host = endpoint_.host;
  view.server_address = server_address;
  for (const std::string& host : {server_address, options_.local_addr, endpoint_.host}) {
    if (view.zone.empty()) view.zone = zone_of(host);
  }
  Endpoint master;
  master.host = master_host(view);
  master.port = is_static() ? endpoint_.port : assignment.master.port;
  if (is_link_local(master.host) && view.zone.empty()) {
    log_warning("MASTER_ADDR={} is a link-local address, and no interface of this host is known for it", master.host);
  }
  return master;
}

asio::awaitable<void> Hosting::drain() {
  if (!host_) co_return;
  co_await host_->drain(options_.run_id, std::min(options_.job.close_timeout, kDrain));
}

void Hosting::close() {
  store_.reset();
  listener_.reset();
  host_.reset();
}

}  // namespace ddprun::launcher
