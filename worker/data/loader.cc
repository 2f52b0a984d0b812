#include "worker/data/loader.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "common/check.h"
#include "common/clock.h"

namespace ddprun::data {
namespace {

constexpr std::size_t kAlign = 64;

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{kAlign}); }
};

std::size_t machine_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

struct Slot {
  std::unique_ptr<std::byte, AlignedDelete> memory;
  std::byte* inputs = nullptr;
  std::byte* targets = nullptr;
  std::int64_t ticket = -1;  // which batch it holds or is being filled with
  bool ready = false;
  std::optional<Error> error;
  std::atomic<std::int64_t> reading{-1};  // the sample in work, for messages
};

}  // namespace

struct Loader::State {
  State(std::shared_ptr<const Dataset> d, LoaderOptions o) : dataset(std::move(d)), options(std::move(o)) {}

  struct Worker {
    std::thread thread;
    bool ended = false;
  };

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<std::shared_ptr<Worker>> workers;

  mutable std::mutex mutex;
  std::condition_variable work;     // threads wait: a ticket may be taken
  std::condition_variable arrived;  // the consumer waits: a batch is ready, or a thread has ended
  std::int64_t epoch = 0;
  std::vector<std::int64_t> indices;
  std::int64_t tickets = 0;      // batches of this epoch
  std::int64_t next_ticket = 0;  // the next to be taken by a thread
  std::int64_t asked = 0;        // batches that the consumer has asked for; the one before is free
  std::int64_t delivered = 0;    // batches that it has
  TimePoint asked_at{};
  int busy = 0;  // threads that fill a slot
  std::atomic<bool> stopping{false};
  Batch current;

  std::int64_t batch_begin(std::int64_t ticket) const { return ticket * options.batch_size; }
  std::int64_t batch_end(std::int64_t ticket) const {
    return std::min(batch_begin(ticket) + options.batch_size, static_cast<std::int64_t>(indices.size()));
  }
  Slot& slot_of(std::int64_t ticket) { return *slots[static_cast<std::size_t>(ticket) % slots.size()]; }

  // A slot is free once the consumer has gone past the batch that it held.
  bool can_take() const {
    return next_ticket < tickets && next_ticket < asked - 1 + static_cast<std::int64_t>(slots.size());
  }

  Result<void> read(std::int64_t index, std::byte* input, std::byte* target) const {
    try {
      return dataset->read(SampleKey{options.seed, epoch, index}, input, target);
    } catch (const std::bad_alloc&) {
      return Error(Errc::system, dataset->name_of(index) + ": no memory left to read it");
    } catch (const std::exception& e) {
      return Error(Errc::system, dataset->name_of(index) + ": " + e.what());
    }
  }

  void fill(Slot& slot, std::int64_t ticket) {
    slot.error.reset();
    const std::size_t input_bytes = dataset->spec().input_bytes();
    const std::size_t target_bytes = dataset->spec().target_bytes();
    std::byte* input = slot.inputs;
    std::byte* target = slot.targets;
    for (std::int64_t at = batch_begin(ticket); at < batch_end(ticket) && !stopping; ++at) {
      const std::int64_t index = indices[static_cast<std::size_t>(at)];
      slot.reading.store(index, std::memory_order_relaxed);
      Result<void> done = read(index, input, target);
      if (!done) {
        slot.error = std::move(done).error();
        break;
      }
      input += input_bytes;
      target += target_bytes;
    }
    slot.reading.store(-1, std::memory_order_relaxed);
  }

  void run(Worker& self) {
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [this] { return stopping || can_take(); });  // the destructor ends it
      if (stopping) break;
      const std::int64_t ticket = next_ticket++;
      Slot& slot = slot_of(ticket);
      slot.ticket = ticket;
      slot.ready = false;
      ++busy;
      lock.unlock();
      fill(slot, ticket);
      lock.lock();
      slot.ready = true;
      --busy;
      arrived.notify_all();
    }
    self.ended = true;
    arrived.notify_all();
  }

  std::string in_work() const {
    std::string names;
    for (const auto& slot : slots) {
      const std::int64_t index = slot->reading.load(std::memory_order_relaxed);
      if (index >= 0) names += (names.empty() ? "" : ", ") + dataset->name_of(index);
    }
    return names.empty() ? "no sample" : names;
  }

  // False: a thread hangs in a read and was left to itself.
  bool stop_threads() {
    std::unique_lock lock(mutex);
    stopping = true;
    work.notify_all();
    const auto all_ended = [this] {
      return std::all_of(workers.begin(), workers.end(), [](const auto& worker) { return worker->ended; });
    };
    const bool clean = arrived.wait_for(lock, options.grace, all_ended);
    for (const auto& worker : workers) {
      if (!worker->ended) worker->thread.detach();
    }
    lock.unlock();
    for (const auto& worker : workers) {
      if (worker->thread.joinable()) worker->thread.join();
    }
    workers.clear();
    if (clean) stopping = false;
    return clean;
  }
};

Loader::Loader(std::shared_ptr<State> state) : state_(std::move(state)) {}
Loader::~Loader() { state_->stop_threads(); }

Result<std::unique_ptr<Loader>> Loader::create(std::shared_ptr<const Dataset> dataset, LoaderOptions options) {
  CHECK(options.batch_size > 0 && options.num_workers >= 0, "loader options are checked by the config");
  const int slots = options.num_workers * std::max(options.prefetch_factor, 1) + 1;
  // A larger batch than the data have is never full.
  const auto batch = static_cast<std::size_t>(std::min(options.batch_size, std::max<std::int64_t>(1, dataset->size())));
  const std::size_t input_bytes = (batch * dataset->spec().input_bytes() + kAlign - 1) / kAlign * kAlign;
  const std::size_t slot_bytes = input_bytes + batch * dataset->spec().target_bytes();
  const auto no_memory = [&] {
    return Error(Errc::system,
                 fmt::format("no memory for batches: {} x {:.1f} MB (data.batch_size {}, num_workers {} x "
                             "prefetch_factor {} + 1), this machine has {:.0f} MB. Lower one of them",
                             slots, static_cast<double>(slot_bytes) / 1e6, options.batch_size, options.num_workers,
                             options.prefetch_factor, static_cast<double>(machine_bytes()) / 1e6));
  };
  // The kernel promises more than there is and kills whoever takes it at its word.
  if (slot_bytes > machine_bytes() / static_cast<std::size_t>(slots)) return no_memory();
  auto state = std::make_shared<State>(std::move(dataset), options);
  for (int i = 0; i < slots; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->memory.reset(static_cast<std::byte*>(
        ::operator new (std::max<std::size_t>(slot_bytes, 1), std::align_val_t{kAlign}, std::nothrow)));
    if (slot->memory == nullptr) return no_memory();
    slot->inputs = slot->memory.get();
    slot->targets = slot->inputs + input_bytes;
    state->slots.push_back(std::move(slot));
  }
  return std::unique_ptr<Loader>(new Loader(std::move(state)));
}

Result<void> Loader::begin_epoch(std::int64_t epoch, std::vector<std::int64_t> indices) {
  State& s = *state_;
  const auto hangs = [&s] {
    return Error(Errc::timed_out, fmt::format("the reads of the epoch before do not end; in work: {}", s.in_work()));
  };
  if (!s.options.persistent_workers && !s.stop_threads()) return hangs();
  std::unique_lock lock(s.mutex);
  s.tickets = 0;  // no new work from the old epoch
  if (!s.arrived.wait_for(lock, s.options.timeout, [&s] { return s.busy == 0; })) return hangs();
  s.epoch = epoch;
  s.indices = std::move(indices);
  s.next_ticket = s.asked = s.delivered = 0;
  for (const auto& slot : s.slots) slot->ready = false;
  s.tickets = (static_cast<std::int64_t>(s.indices.size()) + s.options.batch_size - 1) / s.options.batch_size;
  s.work.notify_all();
  while (s.workers.size() < static_cast<std::size_t>(std::max(1, s.options.num_workers))) {
    auto worker = std::make_shared<State::Worker>();
    try {
      worker->thread = std::thread([state = state_, worker] { state->run(*worker); });
    } catch (const std::system_error& e) {
      return Error(Errc::system, fmt::format("cannot start thread {} of data.num_workers {}: {}", s.workers.size() + 1,
                                             s.options.num_workers, e.what()));
    }
    ::pthread_setname_np(worker->thread.native_handle(), "data");
    s.workers.push_back(std::move(worker));
  }
  return {};
}

std::int64_t Loader::batches() const { return state_->tickets; }

std::string Loader::in_work() const { return state_->in_work(); }

Result<bool> Loader::wait(std::chrono::milliseconds limit) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.delivered >= s.tickets) return true;
  if (s.asked == s.delivered) {
    ++s.asked;
    s.asked_at = SteadyClock::now();
    s.work.notify_all();  // the slot of the batch before is free now
  }
  const std::int64_t ticket = s.delivered;
  Slot& slot = s.slot_of(ticket);
  const TimePoint last = s.asked_at + s.options.timeout;
  const TimePoint until = std::min(last, SteadyClock::now() + limit);
  if (s.arrived.wait_until(lock, until, [&slot, ticket] { return slot.ticket == ticket && slot.ready; })) return true;
  if (until < last) return false;
  return Error(Errc::timed_out,
               fmt::format("batch {} of epoch {} was not read within {} s (data.read_timeout_s); in work: {}",
                           ticket + 1, s.epoch + 1, s.options.timeout.count() / 1000, s.in_work()));
}

Result<const Batch*> Loader::next() {
  State& s = *state_;
  auto ready = wait(s.options.timeout);
  if (!ready) return std::move(ready).error();
  CHECK(*ready, "wait() fails when the timeout is over");
  if (s.delivered >= s.tickets) {
    if (!s.options.persistent_workers) s.stop_threads();
    return static_cast<const Batch*>(nullptr);
  }
  const std::int64_t ticket = s.delivered++;
  Slot& slot = s.slot_of(ticket);
  if (slot.error) return *slot.error;
  const std::int64_t begin = s.batch_begin(ticket);
  s.current.size = s.batch_end(ticket) - begin;
  s.current.inputs = slot.inputs;
  s.current.targets = slot.targets;
  s.current.indices = std::span<const std::int64_t>(s.indices).subspan(static_cast<std::size_t>(begin),
                                                                       static_cast<std::size_t>(s.current.size));
  return static_cast<const Batch*>(&s.current);
}

}  // namespace ddprun::data
