#include "common/deadline.h"

#include <utility>

namespace ddprun {

namespace {

// An operation that ends in the very turn in which the limit passes is not cancelled any more, and what awaits it may
// begin another one: so it is asked again.
constexpr std::chrono::milliseconds kAgain{20};

}  // namespace

struct Deadline::State : std::enable_shared_from_this<State> {
  explicit State(const boost::asio::any_io_executor& executor) : timer(executor) {}
  void wait() {
    timer.async_wait([state = shared_from_this()](const boost::system::error_code& ec) {
      if (ec || state->done) return;
      state->expired = true;
      if (state->on_expiry) state->on_expiry();
      state->timer.expires_after(kAgain);
      state->wait();
    });
  }

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
  state_->wait();
}

Deadline::~Deadline() {
  state_->done = true;
  state_->on_expiry = nullptr;
  state_->timer.cancel();
}

bool Deadline::expired() const { return state_->expired; }

}  // namespace ddprun
