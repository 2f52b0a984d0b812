#include "rendezvous/net/event_set.h"

#include <sys/epoll.h>

#include <chrono>

#include "common/check.h"
#include "common/clock.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr int kEvents = 128;
// A turn of our loop before other work of the context gets its own.
constexpr std::chrono::microseconds kTurn{1000};
constexpr std::size_t kStorm = 32;  // when more connections came at once: look for others after as many events
constexpr std::uint64_t kListenerTag = ~std::uint64_t{0} - 0xffff;  // + index

}  // namespace

struct EventSet::Batch {
  epoll_event events[kEvents];
  int size = 0;
};

EventSet::EventSet(asio::io_context& io) : source_(io) {}

void EventSet::start() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  CHECK(epoll_.get() >= 0, "epoll_create1 failed: no descriptor is left at start");
  boost::system::error_code ignored;
  source_.assign(epoll_.get(), ignored);
  arm();
}

void EventSet::close() {
  if (closed_) return;
  closed_ = true;
  boost::system::error_code ignored;
  source_.cancel(ignored);
  [[maybe_unused]] const int ours = source_.release();
  epoll_.reset();
  slots_.clear();
  doorkeeper_ = nullptr;
  turn_end_ = nullptr;
}

bool EventSet::add(int fd, std::uint32_t events, Watcher& watcher, Tag& tag) {
  std::uint32_t index = 0;
  if (free_.empty()) {
    index = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  tag = (static_cast<Tag>(++generation_) << 32) | index;
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    free_.push_back(index);
    return false;
  }
  slots_[index].watcher = &watcher;
  slots_[index].tag = tag;
  return true;
}

void EventSet::modify(Tag tag, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventSet::forget(Tag tag) {
  if (!watches(tag)) return;
  slots_[index_of(tag)].watcher = nullptr;
  free_.push_back(index_of(tag));
}

void EventSet::release(Tag tag, int fd) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  forget(tag);
}

void EventSet::watch_listener(int fd, std::size_t which) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListenerTag + which;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void EventSet::unwatch_listener(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void EventSet::arm() {
  if (closed_) return;
  source_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       if (!error && !self->closed_) self->turn();
                     });
}

// Ends when nothing more comes, or after kTurn for the context's other work.
// (Tried and left out: to look again for some microseconds before going back to the context, and to wait there with
// a time limit. On a busy machine the first takes the CPU from the clients, in a virtual one the second costs more
// than it saves.)
void EventSet::turn() {
  Batch batch;
  const TimePoint start = SteadyClock::now();
  for (;;) {
    batch.size = ::epoll_wait(epoll_.get(), batch.events, kEvents, 0);
    if (batch.size <= 0) break;
    handle(batch);
    if (closed_) return;
    if (batch.size == 1 || SteadyClock::now() - start > kTurn) break;
  }
  if (turn_end_) turn_end_();
  arm();
}

void EventSet::handle(const Batch& batch) {
  std::size_t taken = 0;
  for (int i = 0; i < batch.size && doorkeeper_ != nullptr; ++i) {
    const std::uint64_t tag = batch.events[i].data.u64;
    if (tag >= kListenerTag) taken += doorkeeper_->on_listener(tag - kListenerTag);
  }
  for (int i = 0; i < batch.size && !closed_; ++i) {
    const Tag tag = batch.events[i].data.u64;
    if (tag >= kListenerTag) continue;
    // One that was closed by an earlier event of this batch is passed over.
    if (watches(tag)) slots_[index_of(tag)].watcher->on_events(batch.events[i].events);
    if (taken > kStorm && static_cast<std::size_t>(i) % kStorm == kStorm - 1 && doorkeeper_ != nullptr) {
      doorkeeper_->look_again();
    }
  }
}

}  // namespace ddprun::rendezvous
