#include "worker/device/device_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "common/clock.h"

namespace ddprun::cuda {
namespace {

// What a user can do about the failures that are met most.
std::string_view remedy(std::string_view text) {
  const auto has = [text](std::string_view word) { return text.find(word) != std::string_view::npos; };
  if (has("out of memory")) return "lower data.batch_size or set train.activation_checkpointing: true";
  if (has("insufficient for CUDA runtime") || has("driver")) {
    return "driver and CUDA toolkit do not fit together: update the driver (nvidia-smi shows its version)";
  }
  if (has("no CUDA-capable device")) return "no GPU is visible: check CUDA_VISIBLE_DEVICES and nvidia-smi";
  if (has("no kernel image")) return "built for another GPU: rebuild with CMAKE_CUDA_ARCHITECTURES for this one";
  if (has("illegal memory access") || has("misaligned")) return "run under compute-sanitizer to find the kernel";
  if (has("ECC") || has("uncorrectable")) return "the GPU reports broken memory: drain this node";
  if (has("unspecified launch failure") || has("fallen off the bus")) return "look for Xid lines in dmesg";
  return "";
}

// A slot's size: a batch of 64 MB is two pieces. What is uploaded once (weights) must not leave slots of its size.
constexpr std::size_t kPieceBytes = std::size_t{32} << 20;
constexpr std::size_t kDownloadBytes = std::size_t{4} << 20;
constexpr std::size_t kLettersAtOnce = 64;
constexpr std::chrono::milliseconds kLastPatience{5'000};  // before memory is given back

std::string gibibytes(std::size_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

}  // namespace

std::string describe_failure(int rank, std::string_view library, std::string_view call, int status,
                             std::string_view text) {
  std::string sentence = rank < 0 ? std::string() : fmt::format("rank {}: ", rank);
  sentence += fmt::format("{} call {} failed with {} ({})", library, call, status, text);
  if (const std::string_view what_to_do = remedy(text); !what_to_do.empty())
    sentence += fmt::format("; {}", what_to_do);
  return sentence;
}

Result<std::unique_ptr<DeviceContext>> DeviceContext::open(DeviceApi& api, int rank, int local_rank) {
  // set_device comes before every other call: anything else would create a context on device 0 in every process.
  // A LOCAL_RANK without a device makes it fail; only then the count is asked for the message.
  const int set = api.set_device(local_rank);
  if (set != DeviceApi::kSuccess) {
    int count = 0;
    if (api.device_count(&count) == DeviceApi::kSuccess && local_rank >= count) {
      return Error(Errc::invalid_argument,
                   fmt::format("rank {}: LOCAL_RANK {} but only {} CUDA device{} visible; lower --nproc-per-node or "
                               "check CUDA_VISIBLE_DEVICES",
                               rank, local_rank, count, count == 1 ? " is" : "s are"));
    }
    return Error(Errc::system, describe_failure(rank, "CUDA", "cudaSetDevice", set, api.error_text(set)));
  }
  std::unique_ptr<DeviceContext> context(new DeviceContext(api, rank, local_rank));
  if (auto created = context->create_streams(); !created) return std::move(created).error();
  return context;
}

Result<void> DeviceContext::create_streams() {
  ok("cudaStreamCreateWithPriority", api_.create_stream(&compute_, false));
  ok("cudaStreamCreateWithPriority", api_.create_stream(&copy_, false));
  // Collectives are short and everybody waits for them.
  ok("cudaStreamCreateWithPriority", api_.create_stream(&communication_, true));
  ok("cudaEventCreateWithFlags", api_.create_event(&reached_));
  for (Slot& slot : slots_) {
    ok("cudaEventCreateWithFlags", api_.create_event(&slot.arrived));
    ok("cudaEventCreateWithFlags", api_.create_event(&slot.taken));
  }
  return status_;
}

DeviceContext::~DeviceContext() {
  be_brief();
  if (!comes_to_rest()) return;
  for (Slot& slot : slots_) {
    if (slot.pinned) api_.free_host(slot.pinned);
    if (slot.arrived) api_.destroy_event(slot.arrived);
    if (slot.taken) api_.destroy_event(slot.taken);
  }
  if (download_) api_.free_host(download_);
  for (std::size_t i = 0; i < letters_.size(); ++i) {
    if (i % kLettersAtOnce == 0) api_.free_host(letters_[i].pinned);
    api_.destroy_event(letters_[i].arrived);
  }
  if (reached_) api_.destroy_event(reached_);
  for (const auto& [memory, allocation] : allocations_) api_.free(memory);  // slots' too
  for (StreamHandle stream : {compute_, copy_, communication_}) {
    if (stream) api_.destroy_stream(stream);
  }
}

void DeviceContext::be_brief() { patience_ = std::min(patience_, kLastPatience); }

bool DeviceContext::comes_to_rest() {
  const std::pair<StreamHandle, std::string_view> streams[] = {
      {copy_, "the last copies"}, {compute_, "the last kernels"}, {communication_, "the last collectives"}};
  for (const auto& [stream, what] : streams) {
    if (!status_) break;
    if (stream && reached_ && ok("cudaEventRecord", api_.record_event(reached_, stream))) wait(reached_, what);
  }
  return !hangs();
}

bool DeviceContext::note(std::string_view library, std::string_view call, int status, std::string_view text) {
  if (status == DeviceApi::kSuccess) return true;
  if (status_) status_ = Error(Errc::system, describe_failure(rank_, library, call, status, text));
  return false;
}

bool DeviceContext::ok(std::string_view call, int status) {
  if (status == DeviceApi::kSuccess) return static_cast<bool>(status_);
  note("CUDA", call, status, api_.error_text(status));
  return false;
}

void DeviceContext::note_launches(std::string_view what) { ok(what, api_.last_launch_error()); }

bool DeviceContext::wait(EventHandle event, std::string_view what) {
  const TimePoint deadline = SteadyClock::now() + patience_;
  std::chrono::microseconds pause{10};
  for (int turn = 0;; ++turn) {
    const int status = api_.query_event(event);
    if (status == DeviceApi::kSuccess) return true;
    if (status != DeviceApi::kNotReady) return ok("cudaEventQuery", status);
    if (SteadyClock::now() >= deadline) break;
    if (turn < 1000) continue;  // some hundred microseconds: short kernels are seen at once
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(500));
  }
  if (status_) {
    status_ = Error(Errc::timed_out,
                    fmt::format("rank {}: device {} did not get to {} within {} s: a kernel, the GPU or its driver "
                                "hangs; look at nvidia-smi and at dmesg (Xid)",
                                rank_, device_, what, std::chrono::duration<double>(patience_).count()));
  }
  return false;
}

bool DeviceContext::wait_for_compute(std::string_view what) {
  if (!ok("cudaEventRecord", api_.record_event(reached_, compute_))) return false;
  return wait(reached_, what);
}

void* DeviceContext::take(std::size_t size_bytes, std::string_view purpose) {
  if (!status_) return nullptr;
  void* memory = nullptr;
  const int status = api_.malloc(&memory, std::max<std::size_t>(size_bytes, 1));
  if (status == DeviceApi::kOutOfMemory) {
    api_.last_launch_error();  // the runtime keeps it as the last error otherwise
    std::size_t free_bytes = 0, total_bytes = 0;
    api_.memory_info(&free_bytes, &total_bytes);
    std::map<std::string, std::size_t> by_purpose;
    for (const auto& [held, allocation] : allocations_) by_purpose[allocation.purpose] += allocation.size;
    std::string parts;
    for (const auto& [name, size] : by_purpose)
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, gibibytes(size));
    status_ = Error(Errc::system,
                    fmt::format("rank {}: out of memory on device {}: {} wanted for {}, {} of {} free; held by this "
                                "process: {}; lower data.batch_size or set train.activation_checkpointing: true",
                                rank_, device_, gibibytes(size_bytes), purpose, gibibytes(free_bytes),
                                gibibytes(total_bytes), parts.empty() ? "nothing" : parts));
    return nullptr;
  }
  if (!ok("cudaMalloc", status)) return nullptr;
  allocations_[memory] = Allocation{size_bytes, std::string(purpose)};
  allocated_ += size_bytes;
  return memory;
}

void* DeviceContext::take_pinned(std::size_t size_bytes) {
  void* memory = nullptr;
  if (!status_ || !ok("cudaMallocHost", api_.malloc_host(&memory, size_bytes))) return nullptr;
  pinned_ += size_bytes;
  return memory;
}

void* DeviceContext::allocate(std::size_t size_bytes, std::string_view purpose) {
  void* memory = take(size_bytes, purpose);
  if (memory) zero(memory, size_bytes);
  return memory;
}

void DeviceContext::release(void* memory) {
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) return;
  allocated_ -= found->second.size;
  allocations_.erase(found);
  if (!comes_to_rest()) return;
  ok("cudaFree", api_.free(memory));
}

bool DeviceContext::grow(Slot& slot, std::size_t size_bytes) {
  // What the slot holds must have been taken before its memory is written again, or goes.
  if (slot.used && !wait(slot.taken, "the kernels that take an earlier batch")) return false;
  if (slot.size >= size_bytes) return true;
  if (slot.pinned) {
    if (!comes_to_rest()) return false;
    ok("cudaFreeHost", api_.free_host(slot.pinned));
    pinned_ -= slot.size;
  }
  if (slot.staged) release(slot.staged);
  slot.size = 0;
  slot.staged = nullptr;
  slot.pinned = take_pinned(size_bytes);
  if (!slot.pinned) return false;
  slot.size = size_bytes;
  slot.staged = take(size_bytes, "batches on their way");
  return slot.staged != nullptr;
}

void DeviceContext::upload(void* device_memory, const void* host, std::size_t size_bytes) {
  for (std::size_t at = 0; at < size_bytes && status_; at += kPieceBytes) {
    upload_piece(static_cast<char*>(device_memory) + at, static_cast<const char*>(host) + at,
                 std::min(kPieceBytes, size_bytes - at));
  }
}

void DeviceContext::upload_piece(char* device_memory, const char* host, std::size_t size_bytes) {
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  if (!grow(slot, size_bytes)) return;
  std::memcpy(slot.pinned, host, size_bytes);
  slot.used = ok("cudaMemcpyAsync", api_.memcpy_async(slot.staged, slot.pinned, size_bytes, copy_)) &&
              ok("cudaEventRecord", api_.record_event(slot.arrived, copy_)) &&
              ok("cudaStreamWaitEvent", api_.wait_event(compute_, slot.arrived)) &&
              ok("cudaMemcpyAsync", api_.memcpy_async(device_memory, slot.staged, size_bytes, compute_)) &&
              ok("cudaEventRecord", api_.record_event(slot.taken, compute_));
}

void DeviceContext::download(void* host, const void* device_memory, std::size_t size_bytes) {
  if (size_bytes > 0 && !download_) download_ = static_cast<std::byte*>(take_pinned(kDownloadBytes));
  // Through memory of ours: after a wait that failed, a copy may still come.
  for (std::size_t at = 0; at < size_bytes && status_; at += kDownloadBytes) {
    const std::size_t piece = std::min(kDownloadBytes, size_bytes - at);
    const auto* from = static_cast<const char*>(device_memory) + at;
    if (!ok("cudaMemcpyAsync", api_.memcpy_async(download_, from, piece, compute_))) return;
    if (!wait_for_compute("a copy to the host")) return;
    std::memcpy(static_cast<char*>(host) + at, download_, piece);
  }
}

DeviceContext::Ticket DeviceContext::send(const double* device_value) {
  if (!status_) return 0;
  if (free_letters_.empty()) {
    auto* pinned = static_cast<double*>(take_pinned(kLettersAtOnce * sizeof(double)));
    if (!pinned) return 0;
    for (std::size_t i = kLettersAtOnce; i-- > 0;) free_letters_.push_back(letters_.size() + i);
    for (std::size_t i = 0; i < kLettersAtOnce; ++i) {
      letters_.push_back({pinned + i, nullptr});
      ok("cudaEventCreateWithFlags", api_.create_event(&letters_.back().arrived));
    }
    if (!status_) return 0;
  }
  const Ticket ticket = free_letters_.back();
  free_letters_.pop_back();
  ok("cudaMemcpyAsync", api_.memcpy_async(letters_[ticket].pinned, device_value, sizeof(double), compute_));
  ok("cudaEventRecord", api_.record_event(letters_[ticket].arrived, compute_));
  return ticket;
}

double DeviceContext::receive(Ticket ticket) {
  if (!status_ || !wait(letters_[ticket].arrived, "a value that was sent to the host")) return 0;
  free_letters_.push_back(ticket);
  return *letters_[ticket].pinned;
}

void DeviceContext::copy_on_compute(void* out, const void* in, std::size_t size_bytes) {
  if (!status_ || size_bytes == 0) return;
  ok("cudaMemcpyAsync", api_.memcpy_async(out, in, size_bytes, compute_));
}

void DeviceContext::zero(void* memory, std::size_t size_bytes) {
  if (!status_ || size_bytes == 0) return;
  ok("cudaMemsetAsync", api_.memset_async(memory, 0, size_bytes, compute_));
}

void DeviceContext::synchronize() {
  if (status_) wait_for_compute("the end of the kernels");
}

Result<void> DeviceContext::check_on_device(const void* memory, std::string_view what) {
  int owner = -1;
  const int status = api_.pointer_device(memory, &owner);
  if (status != DeviceApi::kSuccess) {
    return Error(Errc::system,
                 describe_failure(rank_, "CUDA", "cudaPointerGetAttributes", status, api_.error_text(status)));
  }
  if (owner == device_) return {};
  return Error(Errc::invalid_argument,
               fmt::format("rank {}: {} lies {} but the plan runs on device {}", rank_, what,
                           owner < 0 ? std::string("in host memory") : fmt::format("on device {}", owner), device_));
}

}  // namespace ddprun::cuda
