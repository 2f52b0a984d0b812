#include "rendezvous/store/store_deadlines.h"

#include <utility>

#include "common/check.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

StoreDeadlines::StoreDeadlines(asio::io_context& io, std::chrono::milliseconds time,
                               std::function<void(StoreConnection&)> late)
    : time_(time), late_(std::move(late)), timer_(std::make_shared<asio::steady_timer>(io)) {}

void StoreDeadlines::add(StoreConnection& connection) {
  CHECK(connection.list_ == nullptr, "a connection has two deadlines");
  connection.list_ = this;
  connection.limit_ = SteadyClock::now() + time_;
  connection.previous_ = last_;
  connection.next_ = nullptr;
  (last_ ? last_->next_ : first_) = &connection;
  last_ = &connection;
  if (!armed_) arm();
}

void StoreDeadlines::remove(StoreConnection& connection) {
  StoreDeadlines* const list = std::exchange(connection.list_, nullptr);
  if (list == nullptr) return;
  (connection.previous_ ? connection.previous_->next_ : list->first_) = connection.next_;
  (connection.next_ ? connection.next_->previous_ : list->last_) = connection.previous_;
}

void StoreDeadlines::arm() {
  armed_ = true;
  timer_->expires_at(first_->limit_);
  timer_->async_wait([this, alive = std::weak_ptr<asio::steady_timer>(timer_)](const boost::system::error_code& error) {
    if (!error && !alive.expired()) look();
  });
}

void StoreDeadlines::look() {
  armed_ = false;
  const TimePoint now = SteadyClock::now();
  while (first_ != nullptr && first_->limit_ <= now) late_(*first_);
  if (first_ != nullptr) arm();
}

void StoreDeadlines::close() { timer_.reset(); }

}  // namespace ddprun::rendezvous
