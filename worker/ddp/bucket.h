#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/comm/communicator.h"

// Which gradients are reduced together. Pure.
namespace ddprun::ddp {

using ParamId = std::uint32_t;  // index into the list of parameters that the Reducer was made with

struct ParameterInfo {
  std::string name;  // "layer1.0.conv1.weight"
  std::vector<std::int64_t> shape;
  comm::DType dtype = comm::DType::f32;
  std::size_t count = 0;  // elements

  std::size_t size_bytes() const { return count * comm::size_of(dtype); }
};

struct Bucket {
  comm::DType dtype = comm::DType::f32;
  std::vector<ParamId> parameters;   // in the order in which their gradients become ready
  std::vector<std::size_t> offsets;  // elements, of each parameter; a multiple of 64 bytes
  std::size_t count = 0;             // elements including the gaps between parameters
  std::size_t size_bytes = 0;        // of the parameters alone: what torch's rule counts
};

// torch's rule (DDP 2.15): walk the parameters in `order` with one open bucket per dtype; close it when its bytes reach
// the limit after adding, so a bucket can exceed the limit by one tensor. The first bucket of each dtype has
// `first_limit_bytes`, the others `limit_bytes`. Buckets come in the order in which their last gradient is ready, so
// that none waits for a later one. Parameters that are not in `order` (frozen) are in no bucket.
std::vector<Bucket> assign_buckets(std::span<const ParameterInfo> parameters, std::span<const ParamId> order,
                                   std::size_t first_limit_bytes, std::size_t limit_bytes);

}  // namespace ddprun::ddp
