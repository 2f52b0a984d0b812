#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/result.h"
#include "worker/tensor/dtype.h"
#include "worker/tensor/shape.h"

namespace ddprun::engine {

// Memory of the master type: see kernels.h.
using Master = void;

// One device as its memory and its queue of work, in one precision: what kernels.h says about types holds.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string description() const = 0;  // "cpu f32, avx512, 2 threads"
  virtual DType activation_type() const = 0;
  DType master_type() const { return activation_type() == DType::f64 ? DType::f64 : DType::f32; }
  bool low_precision() const { return activation_type() != master_type(); }

  // Zeroed and 64-byte aligned; null when there is not enough.
  virtual void* allocate(std::size_t size_bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void copy_in(void* device, const void* host, std::size_t size_bytes) = 0;
  virtual void copy_out(void* host, const void* device, std::size_t size_bytes) = 0;  // waits
  virtual void synchronize() = 0;
  // Reads one f64 without waiting: queues its copy to the host behind the work so far. finish_read() gives the value,
  // once for each read_later(), and waits for that copy alone. Host backends read at once.
  struct PendingRead {
    double value = 0;
    std::size_t ticket = 0;
  };
  virtual PendingRead read_later(const double* memory) {
    PendingRead read;
    copy_out(&read.value, memory, sizeof read.value);
    return read;
  }
  virtual double finish_read(const PendingRead& read) { return read.value; }
  // The first failure of a queued call; calls after it do nothing. Host backends never fail.
  virtual Result<void> status() const { return {}; }

  virtual void zero(void* memory, std::size_t size_bytes) = 0;
  virtual void copy(void* out, const void* in, std::size_t size_bytes) = 0;
  virtual void to_low(void* low, const Master* master, std::int64_t count) = 0;  // S -> T
  virtual void from_f32(void* out, const float* in, std::int64_t count) = 0;     // device f32 -> T
  virtual void to_f32(float* out, const void* in, std::int64_t count) = 0;       // T -> device f32
};

}  // namespace ddprun::engine
