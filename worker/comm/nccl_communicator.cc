#include "worker/comm/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/log.h"
#include "worker/base/within.h"
#include "worker/comm/operation.h"

namespace ddprun::comm {
namespace {

using cuda::DeviceApi;
using cuda::EventHandle;

constexpr auto kVerdictPatience = std::chrono::seconds(3);
constexpr auto kFinalizePatience = std::chrono::seconds(5);

std::string remedy_of(int status, const std::string& text) {
  const auto says = [&text](const char* word) { return text.find(word) != std::string::npos; };
  switch (status) {
    case NcclApi::kInvalidUsage:
    case NcclApi::kInvalidArgument:
      return "the ranks disagree (different counts, types or order of collectives), or two ranks use one GPU: compare "
             "their models and CUDA_VISIBLE_DEVICES";
    case NcclApi::kUnhandledCudaError:
      if (says("out of memory")) return "the GPU has no memory left: use a smaller batch or fewer processes on it";
      return "driver and CUDA toolkit do not fit together, or the GPU failed: compare nvidia-smi's CUDA version with "
             "the one that this was built with, and look at dmesg for Xid";
    case NcclApi::kSystemError:
    case NcclApi::kRemoteError:
      return "the network or a firewall between the hosts, or a rank that ended: set NCCL_SOCKET_IFNAME to the right "
             "interface and open the ports between the hosts";
    default:
      return "run again with NCCL_DEBUG=INFO";
  }
}

// Waits a little longer each time: a short collective is seen at once, a long one costs no core.
class Pause {
 public:
  void operator()() {
    if (++turns_ < 200) return;  // about as long as the shortest collective takes
    std::this_thread::sleep_for(wait_);
    wait_ = std::min(wait_ * 2, std::chrono::microseconds(1000));
  }

 private:
  int turns_ = 0;
  std::chrono::microseconds wait_{20};
};

std::int64_t now_ns() { return SteadyClock::now().time_since_epoch().count(); }

}  // namespace

Error nccl_error(NcclApi& nccl, NcclComm comm, int rank, const std::string& call, int status) {
  const std::string last = nccl.last_error(comm);
  return Error(status == NcclApi::kRemoteError                                           ? Errc::peer_closed
               : status == NcclApi::kInvalidUsage || status == NcclApi::kInvalidArgument ? Errc::invalid_argument
                                                                                         : Errc::system,
               fmt::format("NCCL on rank {}: {}: {} ({}){}{}; {}", rank, call, nccl.error_text(status), status,
                           last.empty() ? "" : ": ", last, remedy_of(status, last)));
}

Result<NcclUniqueId> exchange_unique_id(NcclApi& nccl, KeyValue& store, const std::string& key, Communicator& host,
                                        TimePoint deadline) {
  NcclUniqueId id{};
  const auto give_up = [&host](Error error) {
    host.abort(error.message());
    return error;
  };
  if (host.rank() == 0) {
    const int status = nccl.get_unique_id(&id);
    if (status != NcclApi::kSuccess) return give_up(nccl_error(nccl, nullptr, 0, "ncclGetUniqueId", status));
    Result<void> set = store.set(key, std::string_view(id.data(), id.size()));
    if (!set) return give_up(set.error().with_context("cannot publish NCCL's unique id"));
  }
  std::int32_t made = 1;
  Result<void> told = host.broadcast(Block{&made, 1, DType::i32}, 0).wait_until(deadline);
  if (!told)
    return told.error().with_context(fmt::format("rank {} waits for NCCL's unique id from rank 0", host.rank()));
  if (host.rank() == 0) return id;
  auto value = store.get(key, deadline);
  if (!value) return give_up(value.error().with_context("cannot read NCCL's unique id"));
  if (value->size() != id.size()) {
    return give_up(Error(Errc::malformed, fmt::format("store key {} holds {} bytes, a unique id of NCCL has {}", key,
                                                      value->size(), id.size())));
  }
  std::copy(value->begin(), value->end(), id.begin());
  return id;
}

namespace {

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclSetup& setup, std::unique_ptr<QueuedCommunicator> host)
      : core_(std::make_shared<Core>(setup)), host_(std::move(host)), exceptions_(std::uncaught_exceptions()) {
    core_->host = host_.get();
  }

  ~NcclCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_) {
      abort(fmt::format("rank {} ended by an exception", rank()));
    }
    core_->close();
    core_->host = nullptr;
  }

  Result<void> initialise(const NcclUniqueId& id, TimePoint deadline) { return core_->initialise(id, deadline); }

  int rank() const override { return core_->setup.rank; }
  int world_size() const override { return core_->setup.world_size; }
  std::string description() const override {
    return fmt::format("NCCL {}, {} ranks", core_->setup.nccl->version(), world_size());
  }
  bool crosses_hosts() const override { return host_->crosses_hosts(); }
  bool device_memory() const override { return true; }

  Work all_reduce(Block data, Reduce op) override {
    if (on_host(data)) return host_->all_reduce(data, op);
    return core_->launch(signature(OpKind::all_reduce, data, op, 0),
                         [&](NcclApi& nccl, NcclComm comm, NcclStream stream) {
                           return nccl.all_reduce(data.data, data.data, data.count, data.dtype, op, comm, stream);
                         });
  }
  Work broadcast(Block data, int root) override {
    if (on_host(data)) return host_->broadcast(data, root);
    return core_->launch(signature(OpKind::broadcast, data, Reduce::sum, root),
                         [&](NcclApi& nccl, NcclComm comm, NcclStream stream) {
                           return nccl.broadcast(data.data, data.data, data.count, data.dtype, root, comm, stream);
                         });
  }
  Work all_gather(Block mine, Block all) override {
    if (on_host(all)) return host_->all_gather(mine, all);
    return core_->launch(signature(OpKind::all_gather, mine, Reduce::sum, 0),
                         [&](NcclApi& nccl, NcclComm comm, NcclStream stream) {
                           return nccl.all_gather(mine.data, all.data, mine.count, mine.dtype, comm, stream);
                         });
  }
  Work reduce_scatter(Block all, Block mine, Reduce op) override {
    if (on_host(all)) return host_->reduce_scatter(all, mine, op);
    return core_->launch(signature(OpKind::reduce_scatter, mine, op, 0),
                         [&](NcclApi& nccl, NcclComm comm, NcclStream stream) {
                           return nccl.reduce_scatter(all.data, mine.data, mine.count, mine.dtype, op, comm, stream);
                         });
  }
  Result<void> barrier() override {
    Result<void> quiet = core_->drain();
    return quiet ? host_->barrier() : quiet;
  }

  Result<std::byte*> allocate(std::size_t size_bytes) override { return core_->allocate(size_bytes); }

  void abort(const std::string& reason) override {
    host_->abort(reason);  // first, so that the others hear these words
    core_->fail(Error(Errc::cancelled, fmt::format("rank {} aborted: {}", rank(), reason)));
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    core_->setup.timeout = timeout;
    host_->set_timeout(timeout);
  }
  std::uint64_t sequence() const override { return core_->sequence + host_->sequence(); }
  std::uint64_t dropped_handles() const override { return core_->dropped + host_->dropped_handles(); }
  std::uint64_t live_works() const override { return core_->live + host_->live_works(); }

 private:
  struct Core : std::enable_shared_from_this<Core> {
    explicit Core(const NcclSetup& s) : setup(s) {}

    NcclSetup setup;
    QueuedCommunicator* host = nullptr;
    std::mutex mutex;  // comm, failure and every call with comm: abort() may come from any thread and frees it
    NcclComm comm = nullptr;
    std::optional<Error> failure;
    std::uint64_t sequence = 0, dropped = 0, live = 0;
    EventHandle ready = nullptr;                  // what compute has produced
    std::vector<EventHandle> idle_events;         // for reuse
    std::vector<std::pair<void*, void*>> memory;  // and NCCL's handle of it
    std::mutex freeing;                           // hangs, and what gives back
    bool hangs = false;                           // a call that gives back did not return

    // The first error counts. The other ranks hear of it through `host`, before anything here waits for the device:
    // NCCL would leave them waiting.
    Error fail(const Error& error) {
      Error first = error;
      NcclComm ended = nullptr;
      {
        std::lock_guard lock(mutex);
        if (!failure.has_value()) failure = error;
        first = *failure;
        ended = std::exchange(comm, nullptr);
      }
      if (host != nullptr) host->abort(first.message());
      // Ends kernels that wait for others, and frees it.
      if (ended != nullptr) give_back("ncclCommAbort", [ended](NcclApi& nccl) { return nccl.abort(ended); });
      return first;
    }

    // What gives something back waits for the device, on one that hangs for ever. Then that thread is left behind, and
    // nothing more is given back: it goes with the process, whose message must not wait for it.
    void give_back(const std::string& call, const std::function<int(NcclApi&)>& act) {
      std::lock_guard lock(freeing);
      if (hangs) return;
      const auto work = [nccl = setup.nccl, device = setup.device, number = setup.device_number, act]() -> Result<int> {
        (void)device->set_device(number);  // each thread begins on device 0
        return act(*nccl);
      };
      if (within<int>(setup.last_patience, call, work)) return;
      hangs = true;
      log_warning(
          "NCCL on rank {}: {} did not return within {} s: the GPU or its driver hangs; what this process holds "
          "of it goes with the process",
          setup.rank, call, std::chrono::duration<double>(setup.last_patience).count());
    }

    std::optional<Error> failed() {
      std::lock_guard lock(mutex);
      return failure;
    }

    Error nccl_failure(const std::string& call, int status) {
      std::lock_guard lock(mutex);
      return nccl_error(*setup.nccl, comm, setup.rank, call, status);
    }

    Error device_error(const std::string& call, int status) {
      return Error(Errc::system, fmt::format("CUDA on rank {}: {}: {} ({})", setup.rank, call,
                                             setup.device->error_text(status), status));
    }

    // Non-blocking communicators answer "in progress": polls until NCCL has taken the call.
    Result<void> settle(const std::string& call, int status, TimePoint deadline) {
      Pause pause;
      while (status == NcclApi::kInProgress) {
        int state = NcclApi::kSuccess;
        {
          std::lock_guard lock(mutex);
          if (failure.has_value()) return *failure;
          const int asked = setup.nccl->async_error(comm, &state);
          status = asked == NcclApi::kSuccess ? state : asked;
        }
        if (status != NcclApi::kInProgress) break;
        if (auto news = host->news()) return fail(*news);
        if (SteadyClock::now() >= deadline) {
          return fail(Error(Errc::timed_out,
                            fmt::format("NCCL on rank {}: {} did not end in time; not all ranks came, or they cannot "
                                        "reach each other (NCCL_SOCKET_IFNAME, firewall)",
                                        setup.rank, call)));
        }
        pause();
      }
      if (status == NcclApi::kSuccess) return {};
      return fail(nccl_failure(call, status));
    }

    // call(NcclApi&, NcclComm) -> status, until NCCL has taken it. NCCL's calls return at once, so that an abort() from
    // another thread need not wait long for its turn.
    template <typename Call>
    Result<void> take(const std::string& name, TimePoint deadline, Call call) {
      int status = NcclApi::kSuccess;
      {
        std::lock_guard lock(mutex);
        if (failure.has_value()) return *failure;
        status = call(*setup.nccl, comm);
      }
      return settle(name, status, deadline);
    }

    Result<void> initialise(const NcclUniqueId& id, TimePoint deadline) {
      const int event = setup.device->create_event(&ready);
      if (event != DeviceApi::kSuccess) return fail(device_error("cudaEventCreate", event));
      const int status = setup.nccl->init_rank(&comm, setup.world_size, id, setup.rank);
      return settle("ncclCommInitRankConfig", status, deadline);
    }

    template <typename Call>
    Work launch(Signature signature, Call call);

    Result<EventHandle> take_event() {
      if (!idle_events.empty()) {
        EventHandle event = idle_events.back();
        idle_events.pop_back();
        return event;
      }
      EventHandle event = nullptr;
      const int status = setup.device->create_event(&event);
      if (status != DeviceApi::kSuccess) return device_error("cudaEventCreate", status);
      return event;
    }

    // What the other ranks are doing, when NCCL has not ended: who is missing, who is in something else.
    Error verdict(const Signature& mine) {
      const std::string where = mine.describe();
      if (auto news = host->news()) return *news;
      const std::size_t world = static_cast<std::size_t>(setup.world_size);
      std::array<std::int64_t, 6> own = {
          static_cast<std::int64_t>(mine.sequence), static_cast<std::int64_t>(mine.count),
          static_cast<std::int64_t>(mine.kind),     static_cast<std::int64_t>(mine.reduce),
          static_cast<std::int64_t>(mine.dtype),    mine.root};
      std::vector<std::int64_t> all(own.size() * world);
      Work work =
          host->all_gather(Block{own.data(), own.size(), DType::i64}, Block{all.data(), all.size(), DType::i64});
      Result<void> told = work.wait_until(SteadyClock::now() + kVerdictPatience);
      if (!told) {
        return Error(Errc::timed_out,
                     fmt::format("timed out in {} on rank {} (NCCL): {}", where, setup.rank, told.error().message()));
      }
      for (std::size_t r = 0; r < world; ++r) {
        const std::int64_t* theirs = all.data() + r * own.size();
        if (std::equal(own.begin(), own.end(), theirs)) continue;
        Signature other;
        other.sequence = static_cast<std::uint64_t>(theirs[0]);
        other.count = static_cast<std::uint64_t>(theirs[1]);
        other.kind = static_cast<OpKind>(theirs[2]);
        other.reduce = static_cast<Reduce>(theirs[3]);
        other.dtype = static_cast<DType>(theirs[4]);
        other.root = static_cast<std::int32_t>(theirs[5]);
        return Error(Errc::invalid_argument, describe_mismatch(static_cast<int>(r), other, setup.rank, mine));
      }
      return Error(
          Errc::timed_out,
          fmt::format("timed out in {} on rank {} (NCCL), where all ranks are: the GPUs or the network between "
                      "them hang; see NCCL_DEBUG=INFO, dmesg (Xid) and NCCL_SOCKET_IFNAME",
                      where, setup.rank));
    }

    // Until `event` has happened.
    Result<void> await(EventHandle event, const Signature& signature, TimePoint deadline) {
      Pause pause;
      TimePoint looked = SteadyClock::now();
      while (true) {
        const int status = setup.device->query_event(event);
        if (status == DeviceApi::kSuccess) return {};
        if (status != DeviceApi::kNotReady) return fail(device_error("cudaEventQuery", status));
        int state = NcclApi::kSuccess;
        {
          std::lock_guard lock(mutex);
          if (failure.has_value()) return *failure;
          const int asked = setup.nccl->async_error(comm, &state);
          if (asked != NcclApi::kSuccess) state = asked;
        }
        if (state != NcclApi::kSuccess && state != NcclApi::kInProgress) {
          return fail(nccl_failure(signature.describe(), state));
        }
        if (auto news = host->news()) return fail(*news);
        const TimePoint now = SteadyClock::now();
        if (now - looked >= Operation::kDidNotRun) deadline += now - looked;  // as Operation::look()
        looked = now;
        if (now >= deadline) return fail(verdict(signature));
        pause();
      }
    }

    Result<void> drain() {
      if (auto error = failed()) return *error;
      auto event = take_event();
      if (!event) return event.error();
      const int status = setup.device->record_event(*event, setup.communication);
      if (status != DeviceApi::kSuccess) return fail(device_error("cudaEventRecord", status));
      Signature signature;
      signature.sequence = sequence;
      Result<void> ok = await(*event, signature, SteadyClock::now() + setup.timeout);
      idle_events.push_back(*event);
      return ok;
    }

    Result<std::byte*> allocate(std::size_t size_bytes) {
      Result<void> quiet = drain();
      if (!quiet) return quiet.error();
      const std::size_t size = std::max<std::size_t>(size_bytes, 1);
      void* place = nullptr;
      int status = setup.nccl->allocate(&place, size);
      if (status != NcclApi::kSuccess) return fail(nccl_failure("ncclMemAlloc", status));
      void* handle = nullptr;
      const auto enter = [&](NcclApi& nccl, NcclComm c) { return nccl.register_memory(c, place, size, &handle); };
      Result<void> registered = take("ncclCommRegister", SteadyClock::now() + setup.timeout, enter);
      memory.emplace_back(place, handle);
      if (!registered) return registered.error();
      status = setup.device->memset_async(place, 0, size, setup.communication);
      if (status != DeviceApi::kSuccess) return fail(device_error("cudaMemsetAsync", status));
      quiet = drain();
      if (!quiet) return quiet.error();
      return static_cast<std::byte*>(place);
    }

    void close() {
      if (!failed()) (void)drain();
      const auto held = std::exchange(memory, {});
      if (comm != nullptr) {
        give_back("ncclCommDeregister", [c = comm, held](NcclApi& nccl) {
          for (const auto& [place, handle] : held) (void)nccl.deregister(c, handle);
          return NcclApi::kSuccess;
        });
        // In good order if the others do the same; they may be gone.
        Result<void> ended =
            settle("ncclCommFinalize", setup.nccl->finalize(comm), SteadyClock::now() + kFinalizePatience);
        NcclComm last = nullptr;
        {
          std::lock_guard lock(mutex);
          last = std::exchange(comm, nullptr);
        }
        if (ended && last != nullptr) {
          give_back("ncclCommDestroy", [last](NcclApi& nccl) { return nccl.destroy(last); });
        }
      }
      give_back("ncclMemFree", [held](NcclApi& nccl) {
        for (const auto& [place, handle] : held) (void)nccl.free(place);
        return NcclApi::kSuccess;
      });
      for (EventHandle event : idle_events) (void)setup.device->destroy_event(event);
      idle_events.clear();
      if (ready != nullptr) (void)setup.device->destroy_event(std::exchange(ready, nullptr));
      std::lock_guard lock(mutex);
      if (!failure.has_value()) failure = Error(Errc::cancelled, "the communicator was destroyed");
    }
  };

  class Pending final : public Work::State {
   public:
    Pending(std::shared_ptr<Core> core, Signature signature) : core_(std::move(core)), signature_(signature) {
      ++core_->live;
    }
    ~Pending() override {
      --core_->live;
      if (event_ != nullptr && core_->ready != nullptr) core_->idle_events.push_back(event_);
    }

    void end(Result<void> result) {
      result_ = std::move(result);
      if (!core_->setup.recorder) return;
      const FlightState state = *result_                                     ? FlightState::done
                                : result_->error().code() == Errc::cancelled ? FlightState::aborted
                                                                             : FlightState::failed;
      core_->setup.recorder->ended(signature_.sequence, state, {}, now_ns());
    }
    void started(EventHandle event) { event_ = event; }

    bool done() const override {
      return result_.has_value() ||
             (event_ != nullptr && core_->setup.device->query_event(event_) == DeviceApi::kSuccess);
    }

    Result<void> wait(const TimePoint* deadline) override {
      if (result_.has_value()) return *result_;
      if (core_->host == nullptr) {
        end(Error(Errc::cancelled, "the communicator was destroyed"));
      } else {
        end(core_->await(event_, signature_,
                         deadline != nullptr ? *deadline : SteadyClock::now() + core_->setup.timeout));
      }
      return *result_;
    }

    void dropped() noexcept override {
      if (result_.has_value() || core_->failed()) return;
      ++core_->dropped;
      if (std::uncaught_exceptions() > 0) {
        core_->fail(Error(Errc::cancelled, fmt::format("rank {} ended by an exception", core_->setup.rank)));
        return;
      }
      log_warning(
          "a handle was dropped without wait(): {} on rank {}; waiting for its end, since its memory may go too",
          signature_.describe(), core_->setup.rank);
      (void)wait(nullptr);
    }

   private:
    std::shared_ptr<Core> core_;
    Signature signature_;
    EventHandle event_ = nullptr;
    std::optional<Result<void>> result_;
  };

  // A device that has failed cannot tell whose memory it is: then launch() says what happened, where reading device
  // memory here would end the process.
  bool on_host(const Block& block) const {
    int device = -1;
    const int status = core_->setup.device->pointer_device(block.data, &device);
    return status == DeviceApi::kSuccess && device < 0;
  }

  Signature signature(OpKind kind, const Block& part, Reduce op, int root) const {
    Signature s;
    s.sequence = core_->sequence;
    s.count = part.count;
    s.kind = kind;
    s.reduce = op;
    s.dtype = part.dtype;
    s.root = root;
    return s;
  }

  std::shared_ptr<Core> core_;
  std::unique_ptr<QueuedCommunicator> host_;
  int exceptions_;
};

// Compute stream -> event -> communication stream -> NCCL -> event.
template <typename Call>
Work NcclCommunicator::Core::launch(Signature signature, Call call) {
  auto pending = std::make_shared<Pending>(shared_from_this(), signature);
  ++sequence;
  if (setup.recorder) {
    setup.recorder->queued(signature.sequence, static_cast<std::uint8_t>(signature.kind),
                           static_cast<std::uint8_t>(signature.dtype), static_cast<std::uint8_t>(signature.reduce),
                           signature.count, signature.root, now_ns());
    setup.recorder->running(signature.sequence, now_ns());
  }
  const auto refuse = [&pending](Error error) {
    pending->end(std::move(error));
    return Work(pending);
  };
  if (auto error = failed()) return refuse(*error);
  auto event = take_event();
  if (!event) return refuse(fail(event.error()));
  int status = setup.device->record_event(ready, setup.compute);
  if (status == DeviceApi::kSuccess) status = setup.device->wait_event(setup.communication, ready);
  if (status != DeviceApi::kSuccess) return refuse(fail(device_error("cudaStreamWaitEvent", status)));
  const auto enqueue = [&](NcclApi& nccl, NcclComm c) { return call(nccl, c, setup.communication); };
  Result<void> taken = take(signature.describe(), SteadyClock::now() + setup.timeout, enqueue);
  if (!taken) return refuse(taken.error());
  status = setup.device->record_event(*event, setup.communication);
  if (status != DeviceApi::kSuccess) return refuse(fail(device_error("cudaEventRecord", status)));
  pending->started(*event);
  return Work(std::move(pending));
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_nccl_communicator(const NcclSetup& setup, const NcclUniqueId& id,
                                                             std::unique_ptr<QueuedCommunicator> host,
                                                             TimePoint deadline) {
  auto made = std::make_unique<NcclCommunicator>(setup, std::move(host));
  Result<void> ready = made->initialise(id, deadline);
  if (!ready) return ready.error();
  return std::unique_ptr<Communicator>(std::move(made));
}

}  // namespace ddprun::comm
