#include "worker/cuda/device_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

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

std::string gibibytes(std::size_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

}  // namespace

std::string describe_failure(int rank, std::string_view library, std::string_view call, int status,
                             std::string_view text) {
  std::string sentence = fmt::format("rank {}: {} call {} failed with {} ({})", rank, library, call, status, text);
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
  for (Slot& slot : slots_) {
    ok("cudaEventCreateWithFlags", api_.create_event(&slot.arrived));
    ok("cudaEventCreateWithFlags", api_.create_event(&slot.taken));
  }
  return status_;
}

DeviceContext::~DeviceContext() {
  if (compute_) api_.stream_synchronize(compute_);
  if (copy_) api_.stream_synchronize(copy_);
  for (Slot& slot : slots_) {
    if (slot.pinned) api_.free_host(slot.pinned);
    if (slot.staged) api_.free(slot.staged);
    if (slot.arrived) api_.destroy_event(slot.arrived);
    if (slot.taken) api_.destroy_event(slot.taken);
  }
  for (const auto& [memory, allocation] : allocations_) api_.free(memory);
  for (StreamHandle stream : {compute_, copy_, communication_}) {
    if (stream) api_.destroy_stream(stream);
  }
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

void* DeviceContext::allocate(std::size_t size_bytes, std::string_view purpose) {
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
  zero(memory, size_bytes);
  return memory;
}

void DeviceContext::release(void* memory) {
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) return;
  allocated_ -= found->second.size;
  allocations_.erase(found);
  ok("cudaFree", api_.free(memory));
}

bool DeviceContext::grow(Slot& slot, std::size_t size_bytes) {
  if (slot.size >= size_bytes) return true;
  if (slot.used && !ok("cudaEventSynchronize", api_.synchronize_event(slot.taken))) return false;
  if (slot.pinned) api_.free_host(slot.pinned);
  if (slot.staged) api_.free(slot.staged);
  slot.pinned = slot.staged = nullptr;
  slot.size = 0;
  if (!ok("cudaMallocHost", api_.malloc_host(&slot.pinned, size_bytes))) return false;
  if (!ok("cudaMalloc", api_.malloc(&slot.staged, size_bytes))) return false;
  slot.size = size_bytes;
  return true;
}

void DeviceContext::upload(void* device_memory, const void* host, std::size_t size_bytes) {
  if (!status_ || size_bytes == 0) return;
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  if (!grow(slot, size_bytes)) return;
  // The slot's last batch must have been taken before its memory is written again.
  if (slot.used && !ok("cudaEventSynchronize", api_.synchronize_event(slot.taken))) return;
  std::memcpy(slot.pinned, host, size_bytes);
  ok("cudaMemcpyAsync", api_.memcpy_async(slot.staged, slot.pinned, size_bytes, copy_));
  ok("cudaEventRecord", api_.record_event(slot.arrived, copy_));
  ok("cudaStreamWaitEvent", api_.wait_event(compute_, slot.arrived));
  ok("cudaMemcpyAsync", api_.memcpy_async(device_memory, slot.staged, size_bytes, compute_));
  ok("cudaEventRecord", api_.record_event(slot.taken, compute_));
  slot.used = true;
}

void DeviceContext::download(void* host, const void* device_memory, std::size_t size_bytes) {
  if (!status_) return;
  ok("cudaMemcpyAsync", api_.memcpy_async(host, device_memory, size_bytes, compute_));
  ok("cudaStreamSynchronize", api_.stream_synchronize(compute_));
}

void DeviceContext::copy_on_compute(void* out, const void* in, std::size_t size_bytes) {
  if (!status_ || size_bytes == 0) return;
  ok("cudaMemcpyAsync", api_.memcpy_async(out, in, size_bytes, compute_));
}

void DeviceContext::zero(void* memory, std::size_t size_bytes) {
  if (!status_ || size_bytes == 0) return;
  ok("cudaMemsetAsync", api_.memset_async(memory, 0, size_bytes, compute_));
}

void DeviceContext::synchronize() { ok("cudaStreamSynchronize", api_.stream_synchronize(compute_)); }

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
