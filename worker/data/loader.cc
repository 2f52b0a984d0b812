#include "worker/data/loader.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "common/check.h"
#include "common/clock.h"

namespace ddprun::data {

HostAllocator plain_memory() {
  return [](std::size_t size_bytes) {
    constexpr std::align_val_t kAlign{64};
    auto* p = static_cast<std::byte*>(::operator new(std::max<std::size_t>(size_bytes, 1), kAlign));
    return HostMemory(p, [](std::byte* q) { ::operator delete(q, kAlign); });
  };
}

namespace {

struct Slot {
  HostMemory memory;
  std::byte* inputs = nullptr;
  std::byte* targets = nullptr;
  std::int64_t ticket = -1;  // which batch it holds or is being filled with
  bool ready = false;
  std::optional<Error> error;
  std::atomic<std::int64_t> reading{-1};  // the sample in work, for the timeout's message
};

}  // namespace

struct Loader::State {
  State(const Dataset& d, LoaderOptions o) : dataset(d), options(std::move(o)) {}

  const Dataset& dataset;
  LoaderOptions options;
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<std::thread> threads;

  std::mutex mutex;
  std::condition_variable work;     // threads wait: a ticket may be taken
  std::condition_variable arrived;  // the consumer waits: its batch may be ready
  std::int64_t epoch = 0;
  std::vector<std::int64_t> indices;
  std::int64_t tickets = 0;      // batches of this epoch
  std::int64_t next_ticket = 0;  // the next to be taken by a thread
  std::int64_t consumed = 0;     // the next for the consumer; ticket consumed - 1 is still in its hands
  int busy = 0;                  // threads that fill a slot
  bool stopping = false;
  Batch current;

  std::int64_t batch_begin(std::int64_t ticket) const { return ticket * options.batch_size; }
  std::int64_t batch_end(std::int64_t ticket) const {
    return std::min(batch_begin(ticket) + options.batch_size, static_cast<std::int64_t>(indices.size()));
  }
  Slot& slot_of(std::int64_t ticket) { return *slots[static_cast<std::size_t>(ticket) % slots.size()]; }

  // A slot is free once the consumer has gone past the batch that it held.
  bool can_take() const {
    return next_ticket < tickets && next_ticket < consumed - 1 + static_cast<std::int64_t>(slots.size());
  }

  void fill(Slot& slot, std::int64_t ticket) {
    slot.error.reset();
    const std::size_t input_bytes = dataset.spec().input_bytes();
    const std::size_t target_bytes = dataset.spec().target_bytes();
    std::byte* input = slot.inputs;
    std::byte* target = slot.targets;
    for (std::int64_t at = batch_begin(ticket); at < batch_end(ticket); ++at) {
      const std::int64_t index = indices[static_cast<std::size_t>(at)];
      slot.reading.store(index, std::memory_order_relaxed);
      Result<void> done = dataset.read(SampleKey{options.seed, epoch, index}, input, target);
      if (!done) {
        slot.error = std::move(done).error();
        break;
      }
      input += input_bytes;
      target += target_bytes;
    }
    slot.reading.store(-1, std::memory_order_relaxed);
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [this] { return stopping || can_take(); });
      if (stopping) return;
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
  }

  void start_threads() {
    for (int i = static_cast<int>(threads.size()); i < options.num_workers; ++i) {
      threads.emplace_back([this] { run(); });
      ::pthread_setname_np(threads.back().native_handle(), "data");
    }
  }

  void stop_threads() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    work.notify_all();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    stopping = false;
  }

  std::string samples_in_work() {
    std::string names;
    for (const auto& slot : slots) {
      const std::int64_t index = slot->reading.load(std::memory_order_relaxed);
      if (index >= 0) names += (names.empty() ? "" : ", ") + dataset.name_of(index);
    }
    return names.empty() ? "no sample is being read" : names;
  }
};

Loader::Loader(const Dataset& dataset, LoaderOptions options)
    : state_(std::make_unique<State>(dataset, std::move(options))) {
  State& s = *state_;
  CHECK(s.options.batch_size > 0 && s.options.num_workers >= 0, "loader options are checked by the config");
  const int ahead = s.options.num_workers * std::max(s.options.prefetch_factor, 1);
  const auto batch = static_cast<std::size_t>(s.options.batch_size);
  const std::size_t input_bytes = (batch * dataset.spec().input_bytes() + 63) / 64 * 64;
  const std::size_t target_bytes = batch * dataset.spec().target_bytes();
  for (int i = 0; i < ahead + 1; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->memory = s.options.allocate(input_bytes + target_bytes);
    slot->inputs = slot->memory.get();
    slot->targets = slot->inputs + input_bytes;
    s.slots.push_back(std::move(slot));
  }
}

Loader::~Loader() { state_->stop_threads(); }

void Loader::begin_epoch(std::int64_t epoch, std::vector<std::int64_t> indices) {
  State& s = *state_;
  if (!s.options.persistent_workers) s.stop_threads();
  {
    std::unique_lock lock(s.mutex);
    s.tickets = 0;  // no new work from the old epoch
    s.arrived.wait(lock, [&s] { return s.busy == 0; });
    s.epoch = epoch;
    s.indices = std::move(indices);
    s.next_ticket = s.consumed = 0;
    for (const auto& slot : s.slots) slot->ready = false;
    s.tickets = (static_cast<std::int64_t>(s.indices.size()) + s.options.batch_size - 1) / s.options.batch_size;
  }
  s.start_threads();
  s.work.notify_all();
}

std::int64_t Loader::batches() const { return state_->tickets; }

Result<const Batch*> Loader::next() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.consumed >= s.tickets) {
    if (!s.options.persistent_workers && !s.threads.empty()) {
      lock.unlock();
      s.stop_threads();
    }
    return static_cast<const Batch*>(nullptr);
  }
  const std::int64_t ticket = s.consumed++;
  Slot& slot = s.slot_of(ticket);
  if (s.options.num_workers == 0) {
    lock.unlock();
    slot.ticket = ticket;
    s.fill(slot, ticket);
    slot.ready = true;
    lock.lock();
  } else {
    s.work.notify_all();  // the slot of the batch before is free now
    const auto ready = [&slot, ticket] { return slot.ticket == ticket && slot.ready; };
    if (!s.arrived.wait_for(lock, s.options.timeout, ready)) {
      return Error(Errc::timed_out, fmt::format("batch {} of epoch {} was not read within {} s; in work: {}", ticket,
                                                s.epoch, s.options.timeout.count() / 1000, s.samples_in_work()));
    }
  }
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
