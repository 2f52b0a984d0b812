#include "rendezvous/store/store_server.h"

#include <utility>

namespace ddprun::rendezvous {

namespace {

Strangers::Limits limits_of(const StoreServerOptions& options) {
  Strangers::Limits limits;
  limits.time = options.setup_timeout;
  return limits;
}

}  // namespace

StoreServer::StoreServer(boost::asio::io_context& context, Listener listener, StoreServerOptions options)
    : acceptor_(context, std::move(listener), limits_of(options)), service_(acceptor_, options) {}

void StoreServer::clear() {
  // Those that wait to be accepted are part of the past too, if they already spoke.
  acceptor_.drop_spoken(Acceptor::kAnyOther);
  service_.clear();
}

void StoreServer::hold() {
  acceptor_.hold();
  service_.clear();
}

void StoreServer::serve() { acceptor_.serve(); }

void StoreServer::close() {
  service_.close();
  acceptor_.close();
}

}  // namespace ddprun::rendezvous
