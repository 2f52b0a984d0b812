#include "rendezvous/metrics_server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <exception>
#include <list>
#include <memory>
#include <utility>

#include "common/log.h"
#include "rendezvous/server/status.h"

// The one file that includes Beast.
namespace ddprun::rendezvous {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::uint32_t kMaxHeader = 8'192;
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

struct MetricsServer::Impl : std::enable_shared_from_this<MetricsServer::Impl> {
  Impl(asio::io_context& context, RendezvousServer& s) : io(context), server(&s), acceptor(context), pause(context) {}

  asio::awaitable<void> accept() {
    boost::system::error_code ignored;
    while (acceptor.is_open()) {
      tcp::socket socket(io);
      const auto [error] = co_await acceptor.async_accept(socket, kAsTuple);
      if (!acceptor.is_open()) break;
      if (error) {
        pause.expires_after(kAcceptPause);
        co_await pause.async_wait(kAsTuple);
        continue;
      }
      // The oldest goes, not the newcomer: whoever holds connections cannot keep a health check out.
      if (open.size() >= kMaxConnections) open.front()->socket().close(ignored);
      open.push_back(std::make_shared<boost::beast::tcp_stream>(std::move(socket)));
      if (open.size() > kMaxConnections) open.pop_front();
      const auto stream = open.back();
      asio::co_spawn(io, serve(stream), [self = shared_from_this(), stream](std::exception_ptr failure) {
        self->open.remove(stream);
        if (failure) std::rethrow_exception(failure);
      });
    }
  }

  asio::awaitable<void> serve(std::shared_ptr<boost::beast::tcp_stream> kept) {
    const auto self = shared_from_this();
    boost::beast::tcp_stream& stream = *kept;
    boost::beast::flat_buffer buffer;
    while (true) {
      http::request_parser<http::empty_body> parser;
      parser.header_limit(kMaxHeader);
      stream.expires_after(kLimit);
      const auto [read_error, read_size] = co_await http::async_read(stream, buffer, parser, kAsTuple);
      if (read_error || server == nullptr) break;
      http::response<http::string_body> response = answer(parser.get());
      const bool keep = response.keep_alive();
      stream.expires_after(kLimit);
      const auto [write_error, write_size] = co_await http::async_write(stream, response, kAsTuple);
      if (write_error || !keep) break;
    }
    boost::system::error_code ignored;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  http::response<http::string_body> answer(const http::request<http::empty_body>& request) const {
    http::response<http::string_body> response;
    response.version(request.version());
    response.keep_alive(request.keep_alive());
    response.set(http::field::content_type, "text/plain; charset=utf-8");
    const std::string target(request.target().substr(0, request.target().find('?')));
    const bool head = request.method() == http::verb::head;
    std::string body;
    if (!head && request.method() != http::verb::get) {
      response.result(http::status::method_not_allowed);
      response.set(http::field::allow, "GET, HEAD");
      body = "only GET\n";
    } else if (target == "/metrics") {
      const bool openmetrics =
          request[http::field::accept].find("application/openmetrics-text") != std::string_view::npos;
      response.set(http::field::content_type, openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                                          : "text/plain; version=0.0.4; charset=utf-8");
      body = to_metrics(openmetrics ? MetricsFormat::openmetrics : MetricsFormat::text, server->jobs(),
                        server->counters(), server->store_stats());
    } else if (target == "/healthz" || target == "/readyz") {
      body = "ok\n";
    } else {
      response.result(http::status::not_found);
      body = "try /metrics, /healthz or /readyz\n";
    }
    response.content_length(body.size());
    if (!head) response.body() = std::move(body);
    return response;
  }

  void close() {
    server = nullptr;
    boost::system::error_code ignored;
    acceptor.close(ignored);
    pause.cancel();
  }

  asio::io_context& io;
  RendezvousServer* server;
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::uint16_t port = 0;
  std::list<std::shared_ptr<boost::beast::tcp_stream>> open;  // the oldest first
};

MetricsServer::MetricsServer(asio::io_context& io, Listener listener, RendezvousServer& server)
    : impl_(std::make_shared<Impl>(io, server)) {
  impl_->port = listener.port;
  boost::system::error_code error;
  // The family only matters for the endpoints that Asio would report; it is not asked for them.
  impl_->acceptor.assign(tcp::v6(), listener.fd.get(), error);
  CHECK(!error, "a listening descriptor was not accepted");
  listener.fd.release();
  asio::co_spawn(io, impl_->accept(), [impl = impl_](std::exception_ptr failure) {
    if (failure) std::rethrow_exception(failure);
  });
}

MetricsServer::~MetricsServer() { impl_->close(); }

std::uint16_t MetricsServer::port() const { return impl_->port; }

}  // namespace ddprun::rendezvous
