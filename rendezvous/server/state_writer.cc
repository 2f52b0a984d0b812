#include "rendezvous/server/state_writer.h"

#include <boost/asio/post.hpp>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/log.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

struct StateWriter::Shared {
  std::mutex mutex;
  std::condition_variable idle;
  bool busy = false;
  asio::io_context* io = nullptr;  // null: nobody hears any more
};

StateWriter::StateWriter(asio::io_context& io, std::shared_ptr<const StateFile> file, Snapshot snapshot,
                         std::function<void()> on_settled)
    : io_(io),
      file_(std::move(file)),
      snapshot_(std::move(snapshot)),
      on_settled_(std::move(on_settled)),
      patience_(io),
      shared_(std::make_shared<Shared>()) {
  shared_->io = &io;
}

std::uint64_t StateWriter::changed() {
  ++wanted_;
  write();
  return wanted_;
}

void StateWriter::retry() { write(); }

void StateWriter::close() {
  const auto end = SteadyClock::now() + std::chrono::seconds(1);
  const auto idle = [this] { return !shared_->busy; };
  std::unique_lock lock(shared_->mutex);
  if (shared_->idle.wait_until(lock, end, idle) && saved_ != wanted_) {
    lock.unlock();
    busy_ = false;
    write();
    lock.lock();
    shared_->idle.wait_until(lock, end, idle);
  }
  shared_->io = nullptr;
  closed_ = true;
  patience_.cancel();
}

void StateWriter::write() {
  if (busy_ || closed_ || saved_ == wanted_) return;
  busy_ = true;
  watch();
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->busy = true;
  }
  const auto work = [shared = shared_, file = file_, worlds = snapshot_(), change = wanted_, weak = weak_from_this()] {
    auto result = file->write(worlds);
    const std::lock_guard lock(shared->mutex);
    shared->busy = false;
    shared->idle.notify_all();
    if (shared->io == nullptr) return;
    asio::post(*shared->io, [weak, change, result = std::move(result)] {
      if (const auto self = weak.lock()) self->written(change, result);
    });
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {
    work();  // no thread is to be had: then here
  }
}

void StateWriter::watch() {
  patience_.expires_after(kPatience);
  patience_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || self->closed_ || !self->busy_) return;
    self->stuck_ = true;
    log_warning(
        "the disk of the state file does not answer for {} s: jobs go on; if this daemon dies now, the next one does "
        "not know which workers may live",
        kPatience.count());
    self->on_settled_();
  });
}

void StateWriter::written(std::uint64_t change, const Result<void>& result) {
  busy_ = false;
  patience_.cancel();
  if (closed_) return;
  if (result) saved_ = change;
  settled_ = stuck_ ? wanted_ : change;
  if (result && (fails_ || stuck_)) log_info("the state file is written again");
  if (!result && !fails_) {
    log_warning(
        "{}: if this daemon dies now, the next one does not know which workers may live. Trying again every second",
        result.error().message());
  }
  fails_ = !result;
  stuck_ = false;
  if (result) write();  // what came meanwhile
  on_settled_();
}

}  // namespace ddprun::rendezvous
