#include "worker/comm/queued_communicator.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/log.h"

namespace ddprun::comm {
namespace {

std::int64_t now_ns() { return SteadyClock::now().time_since_epoch().count(); }

bool reduces(OpKind kind) { return kind == OpKind::all_reduce || kind == OpKind::reduce_scatter; }

}  // namespace

struct QueuedCommunicator::Core {
  std::unique_ptr<Transport> transport;
  Options options;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Pending>> queue;  // front is running or next
  bool running = false;                        // somebody is inside transport->run() or allocate()
  bool stopping = false;
  std::optional<Error> failure;  // the first one; everything after it gets the same
  std::uint64_t sequence = 0;
  std::uint64_t dropped = 0;
  std::atomic<std::uint64_t> live{0};
  int rank = 0;
  std::thread progress;

  void run_front(std::unique_lock<std::mutex>& lock);
  void progress_loop();
};

class QueuedCommunicator::Pending final : public Work::State {
 public:
  explicit Pending(std::shared_ptr<Core> core_in) : core(std::move(core_in)) {
    core->live.fetch_add(1, std::memory_order_relaxed);
  }
  ~Pending() override { core->live.fetch_sub(1, std::memory_order_relaxed); }

  bool done() const override {
    std::lock_guard lock(core->mutex);
    return result.has_value();
  }

  Result<void> wait(const TimePoint* deadline) override {
    if (finished.load(std::memory_order_acquire)) return *result;
    std::unique_lock lock(core->mutex);
    if (deadline != nullptr) operation.set_deadline(*deadline);
    has_own_deadline = deadline != nullptr;
    while (!result.has_value()) {
      if (core->running) {
        core->changed.wait(lock);  // the one that runs it has the deadline
      } else {
        core->run_front(lock);
      }
    }
    return *result;
  }

  void dropped() noexcept override {
    const bool unwinding = std::uncaught_exceptions() > 0;
    bool failed = false;
    {
      std::lock_guard lock(core->mutex);
      failed = core->failure.has_value();
      if (!failed) ++core->dropped;  // after a failure nothing is worth waiting for
      if (core->transport == nullptr || finished) return;
      if (unwinding && !core->failure.has_value()) {
        core->failure = Error(Errc::cancelled, "rank " + std::to_string(core->rank) + " ended by an exception");
      }
    }
    if (unwinding) {
      core->transport->abort("rank " + std::to_string(core->rank) + " ended by an exception");
    } else if (!failed) {
      log_warning(
          "a handle was dropped without wait(): {} on rank {}; waiting for its end, since its memory may go too",
          operation.signature.describe(), core->rank);
    }
    (void)wait(nullptr);
  }

  std::shared_ptr<Core> core;
  Operation operation;
  bool has_own_deadline = false;
  std::optional<Result<void>> result;  // under core->mutex until `finished`
  std::atomic<bool> finished{false};
};

// Runs the oldest operation. `lock` is held on entry and exit, not in between.
void QueuedCommunicator::Core::run_front(std::unique_lock<std::mutex>& lock) {
  std::shared_ptr<Pending> next = queue.front();
  const std::uint64_t number = next->operation.signature.sequence;
  Result<void> outcome;
  if (failure.has_value()) {
    outcome = *failure;
  } else {
    running = true;
    const std::int64_t began = now_ns();
    next->operation.last_look = TimePoint(Duration(began));
    if (options.recorder) options.recorder->running(number, began);
    if (!next->has_own_deadline) next->operation.set_deadline(TimePoint(Duration(began)) + options.timeout);
    lock.unlock();
    outcome = transport->run(next->operation);
    lock.lock();
    running = false;
  }
  if (!outcome && !failure.has_value()) failure = outcome.error();
  if (options.recorder) {
    const FlightState state = outcome                                     ? FlightState::done
                              : outcome.error().code() == Errc::cancelled ? FlightState::aborted
                                                                          : FlightState::failed;
    options.recorder->ended(number, state, next->operation.missing, now_ns());
  }
  next->result = std::move(outcome);
  next->finished.store(true, std::memory_order_release);
  queue.pop_front();
  changed.notify_all();
}

void QueuedCommunicator::Core::progress_loop() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return stopping || (!queue.empty() && !running); });
    if (stopping) return;
    run_front(lock);
  }
}

QueuedCommunicator::QueuedCommunicator(std::unique_ptr<Transport> transport, Options options)
    : core_(std::make_shared<Core>()), exceptions_at_start_(std::uncaught_exceptions()) {
  core_->transport = std::move(transport);
  core_->rank = core_->transport->rank();
  core_->options = std::move(options);
  if (core_->options.progress_thread) core_->progress = std::thread([core = core_.get()] { core->progress_loop(); });
}

QueuedCommunicator::~QueuedCommunicator() {
  if (!core_->transport->usable_here()) {
    // A child of fork(): the thread and the connections are the parent's.
    if (core_->progress.joinable()) core_->progress.detach();
    core_->transport = nullptr;
    return;
  }
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    abort("rank " + std::to_string(rank()) + " ended by an exception");
  }
  std::unique_lock lock(core_->mutex);
  core_->stopping = true;
  if (!core_->failure.has_value()) {
    core_->failure = Error(Errc::cancelled, "the communicator was destroyed on rank " + std::to_string(rank()));
    // Somebody is inside a collective (the progress thread): it must not wait for ranks that will not come.
    if (core_->running) {
      lock.unlock();
      core_->transport->abort("rank " + std::to_string(rank()) + " destroyed its communicator in a collective");
      lock.lock();
    }
  }
  core_->changed.notify_all();
  if (core_->progress.joinable()) {
    lock.unlock();
    core_->progress.join();
    lock.lock();
  }
  while (!core_->queue.empty()) core_->run_front(lock);  // answers those whom nobody waited for
  lock.unlock();
  // Handles may outlive the communicator; the transport (and the memory that it owns) may not.
  core_->transport = nullptr;
}

int QueuedCommunicator::rank() const { return core_->rank; }
int QueuedCommunicator::world_size() const { return core_->transport->world_size(); }
std::string QueuedCommunicator::description() const { return core_->transport->description(); }
bool QueuedCommunicator::crosses_hosts() const { return core_->transport->crosses_hosts(); }

Work QueuedCommunicator::start(OpKind kind, Block in, Block out, Reduce reduce, int root) {
  auto pending = std::make_shared<Pending>(core_);
  Operation& operation = pending->operation;
  operation.in = in;
  operation.out = out;
  Signature& signature = operation.signature;
  signature.kind = kind;
  signature.count = kind == OpKind::reduce_scatter ? out.count : in.count;
  signature.dtype = in.dtype;
  signature.reduce = reduces(kind) ? reduce : Reduce::sum;
  signature.root = root;

  std::unique_lock lock(core_->mutex);
  signature.sequence = core_->sequence++;
  if (core_->options.recorder) {
    core_->options.recorder->queued(signature.sequence, static_cast<std::uint8_t>(kind),
                                    static_cast<std::uint8_t>(signature.dtype),
                                    static_cast<std::uint8_t>(signature.reduce), signature.count, root, now_ns());
  }
  // What only this rank can see is told here; the others would wait, so they are told too.
  std::string wrong;
  const auto world = static_cast<std::uint64_t>(core_->transport->world_size());
  if (!core_->transport->usable_here()) {
    pending->result = Error(Errc::cancelled, signature.describe() +
                                                 ": this communicator belongs to the parent process; after fork() the "
                                                 "child must make its own (or call exec)");
    pending->finished.store(true, std::memory_order_release);
    return Work(std::move(pending));
  }
  if (in.count > 0 && in.data == nullptr) wrong = "data is null";
  if (kind == OpKind::broadcast && (root < 0 || root >= static_cast<int>(world))) {
    wrong = "root " + std::to_string(root) + " is not in 0.." + std::to_string(world - 1);
  }
  if (kind == OpKind::all_gather && (out.count != in.count * world || out.dtype != in.dtype)) {
    wrong = "`all` has " + std::to_string(out.count) + " " + name_of(out.dtype) + ", must have world_size x " +
            std::to_string(in.count) + " " + name_of(in.dtype);
  }
  if (kind == OpKind::reduce_scatter && (in.count != out.count * world || out.dtype != in.dtype)) {
    wrong = "`all` has " + std::to_string(in.count) + " " + name_of(in.dtype) + ", must have world_size x " +
            std::to_string(out.count) + " " + name_of(out.dtype);
  }
  if (!wrong.empty() && !core_->failure.has_value()) {
    const std::string text = signature.describe() + " on rank " + std::to_string(rank()) + ": " + wrong;
    core_->failure = Error(Errc::invalid_argument, text);
    lock.unlock();
    core_->transport->abort(text);
    lock.lock();
  }
  core_->queue.push_back(pending);
  if (core_->progress.joinable()) core_->changed.notify_all();
  return Work(std::move(pending));
}

Work QueuedCommunicator::all_reduce(Block data, Reduce op) { return start(OpKind::all_reduce, data, data, op, 0); }
Work QueuedCommunicator::broadcast(Block data, int root) {
  return start(OpKind::broadcast, data, data, Reduce::sum, root);
}
Work QueuedCommunicator::all_gather(Block mine, Block all) {
  return start(OpKind::all_gather, mine, all, Reduce::sum, 0);
}
Work QueuedCommunicator::reduce_scatter(Block all, Block mine, Reduce op) {
  return start(OpKind::reduce_scatter, all, mine, op, 0);
}
Result<void> QueuedCommunicator::barrier() { return start(OpKind::barrier, {}, {}, Reduce::sum, 0).wait(); }

Result<std::byte*> QueuedCommunicator::allocate(std::size_t size_bytes) {
  // Goes through the queue like any other collective; only its result is more than yes or no.
  Block size{nullptr, 0, DType::f32};
  auto pending = std::make_shared<Pending>(core_);
  Operation& operation = pending->operation;
  operation.in = size;
  operation.signature.kind = OpKind::allocate;
  operation.signature.count = size_bytes;
  {
    std::unique_lock lock(core_->mutex);
    if (!core_->transport->usable_here()) {
      return Error(Errc::cancelled,
                   "allocate: this communicator belongs to the parent process; after fork() the child must make its "
                   "own (or call exec)");
    }
    operation.signature.sequence = core_->sequence++;
    if (core_->options.recorder) {
      core_->options.recorder->queued(operation.signature.sequence, static_cast<std::uint8_t>(OpKind::allocate), 0, 0,
                                      size_bytes, 0, now_ns());
    }
    core_->queue.push_back(pending);
    if (core_->progress.joinable()) core_->changed.notify_all();
  }
  Work work(pending);
  Result<void> ok = work.wait();
  if (!ok) return ok.error();
  return operation.allocated;
}

void QueuedCommunicator::abort(const std::string& reason) {
  {
    std::lock_guard lock(core_->mutex);
    if (!core_->failure.has_value()) core_->failure = Error(Errc::cancelled, "aborted: " + reason);
  }
  core_->transport->abort(reason);
}

std::optional<Error> QueuedCommunicator::news() {
  std::lock_guard lock(core_->mutex);
  if (core_->failure.has_value() || core_->running) return core_->failure;
  return core_->transport->news();
}

void QueuedCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  std::lock_guard lock(core_->mutex);
  core_->options.timeout = timeout;
}

std::uint64_t QueuedCommunicator::sequence() const {
  std::lock_guard lock(core_->mutex);
  return core_->sequence;
}

std::uint64_t QueuedCommunicator::live_works() const { return core_->live.load(std::memory_order_relaxed); }

std::uint64_t QueuedCommunicator::dropped_handles() const {
  std::lock_guard lock(core_->mutex);
  return core_->dropped;
}

}  // namespace ddprun::comm
