#include "launcher/hosting.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <utility>

#include "common/log.h"

namespace ddprun::launcher {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds kDrain{10'000};
constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

bool is_loopback_name(const std::string& host) { return host == "localhost" || is_loopback(host); }

bool is_literal(const std::string& host) {
  boost::system::error_code ec;
  asio::ip::make_address(host, ec);
  return !ec;
}

}  // namespace

Hosting::Hosting(asio::io_context& io, AgentOptions options, Services services)
    : io_(io), options_(std::move(options)), services_(std::move(services)), endpoint_(options_.endpoint) {}

Hosting::~Hosting() = default;

Endpoint Hosting::client_endpoint() const { return client_endpoint_.value_or(endpoint_); }

bool Hosting::loopback_job() const { return options_.standalone || is_loopback_name(options_.endpoint.host); }

asio::awaitable<Result<void>> Hosting::prepare() {
  if (endpoint_.host == "localhost") endpoint_.host = "127.0.0.1";
  if (options_.standalone) {
    endpoint_.host = "127.0.0.1";
    auto hosted = host_on(endpoint_.host, endpoint_.port);
    co_return hosted;
  }
  if (is_static()) {
    if (options_.node_rank.value_or(0) != 0) co_return Result<void>();
    // The name may be a service's that is no address of this host, so any address will do.
    auto hosted = host_on(is_loopback_name(endpoint_.host) ? endpoint_.host : "", endpoint_.port);
    if (!hosted) co_return std::move(hosted).error().with_context("--node-rank=0 serves " + endpoint_.to_string());
    co_return Result<void>();
  }
  if (options_.is_host.value_or(false)) {
    auto hosted = host_on(is_loopback_name(endpoint_.host) ? endpoint_.host : "", endpoint_.port);
    if (!hosted) co_return std::move(hosted).error().with_context("--rdzv-conf is_host=1");
    co_return Result<void>();
  }
  co_await try_to_host();
  co_return Result<void>();
}

asio::awaitable<void> Hosting::try_to_host() {
  if (host_ || is_static() || options_.is_host.has_value()) co_return;
  if (is_literal(endpoint_.host)) {
    auto hosted = host_on(endpoint_.host, endpoint_.port);
    if (!hosted) log_debug("not the host of {}: {}", endpoint_.to_string(), hosted.error().message());
    co_return;
  }
  asio::ip::tcp::resolver resolver(io_);
  std::string name = endpoint_.host;
  std::string service = std::to_string(endpoint_.port);
  const auto [error, found] = co_await resolver.async_resolve(name, service, kAsTuple);
  if (error) co_return;  // the client tells
  for (const auto& entry : found) {
    ListenOptions probe;
    probe.address = entry.endpoint().address().to_string();
    auto bound = tcp_listen(probe);  // any port: is this address ours?
    if (!bound) continue;
    bound->fd.reset();
    // Other hosts may know the name by another address of ours (127.0.1.1 in Debian's hosts file).
    auto hosted = host_on("", endpoint_.port);
    if (!hosted) log_debug("not the host of {}: {}", endpoint_.to_string(), hosted.error().message());
    co_return;
  }
}

void Hosting::stop_looking() {}

Result<void> Hosting::host_on(const std::string& address, std::uint16_t port) {
  ListenOptions listen;
  listen.address = address == "localhost" ? "127.0.0.1" : address;
  listen.port = port;
  listen.first_port = options_.first_port;
  listen.last_port = options_.last_port;
  auto bound = tcp_listen(listen);
  if (!bound) return std::move(bound).error();
  auto made = services_.host_rendezvous(io_, std::move(*bound));
  if (!made) return std::move(made).error();
  host_ = std::move(*made);
  endpoint_.port = host_->port();
  client_endpoint_ = endpoint_;
  if (address.empty()) client_endpoint_->host = "127.0.0.1";
  log_info("hosting the rendezvous endpoint={}", endpoint_.to_string());
  return Result<void>();
}

Result<std::uint16_t> Hosting::bind_store() {
  if (is_static()) return std::uint16_t{0};
  if (store_ && options_.master_port) {  // the same port is kept over restarts
    store_->hold();
    return store_->port();
  }
  store_.reset();
  ListenOptions listen;
  if (loopback_job()) listen.address = endpoint_.host;
  listen.port = options_.master_port.value_or(0);
  listen.first_port = options_.first_port;
  listen.last_port = options_.last_port;
  auto bound = tcp_listen(listen);
  if (!bound && options_.master_port && options_.nnodes_max > 1) {
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
  if (!options_.serve_worker_store) {
    listener_.reset();
    return Result<void>();
  }
  if (store_) {  // the kept port
    store_->serve();
    return Result<void>();
  }
  auto made = services_.make_worker_store(io_, std::move(*listener_));
  listener_.reset();
  if (!made) return std::move(made).error();
  store_ = std::move(*made);
  return Result<void>();
}

Endpoint Hosting::master(const rdzv::Assignment& assignment, const std::string& server_address) const {
  if (!is_static()) return assignment.master;
  Endpoint master = endpoint_;
  if (!is_literal(master.host)) master.host = server_address;
  return master;
}

asio::awaitable<void> Hosting::drain() {
  if (!host_) co_return;
  co_await host_->drain(options_.run_id, std::min(options_.times.close_timeout, kDrain));
}

void Hosting::close() {
  store_.reset();
  listener_.reset();
  host_.reset();
}

}  // namespace ddprun::launcher
