#include "common/deadline.h"

#include <utility>

namespace ddprun {

struct Deadline::State {
  explicit State(const boost::asio::any_io_executor& executor) : timer(executor) {}
  boost::asio::steady_timer timer;
  std::function<void()> on_expiry;
  bool expired = false;
  bool done = false;
};

Deadline::Deadline(const boost::asio::any_io_executor& executor, std::chrono::milliseconds limit,
                   std::function<void()> on_expiry)
    : state_(std::make_shared<State>(executor)) {
  state_->on_expiry = std::move(on_expiry);
  state_->timer.expires_after(limit);
  state_->timer.async_wait([state = state_](const boost::system::error_code& ec) {
    if (ec || state->done) return;
    state->expired = true;
    if (state->on_expiry) state->on_expiry();
  });
}

Deadline::~Deadline() {
  state_->done = true;
  state_->on_expiry = nullptr;
  state_->timer.cancel();
}

bool Deadline::expired() const { return state_->expired; }

}  // namespace ddprun
