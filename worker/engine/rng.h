#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <span>

namespace ddprun::engine {

// Draws numbers as torch's CPU generator does after torch.manual_seed(seed), so that the same seed gives the same
// initial weights. Rules checked against torch 2.15: uniforms equal to the bit; normals of fewer than 16 elements to
// the bit, longer ones within 2e-6 standard deviations (torch takes log, sin and cos from a vector library there).
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

  void uniform(std::span<float> out, double low, double high);  // fp32 uniform_(low, high)
  void normal(std::span<float> out, double mean, double std);   // fp32 normal_(mean, std)
  double uniform_f64();                                         // [0, 1), 53 bits
  std::uint32_t draw32() { return static_cast<std::uint32_t>(engine_()); }
  std::uint64_t draw64();  // first draw is the high half

 private:
  float uniform24();
  double next_normal();

  std::mt19937 engine_;
  std::optional<double> cached_normal_;
};

// What a random mask depends on, and nothing else: not on threads, nor on how often it is computed.
//   stream: index of the micro-batch within the step over all ranks, micro_batch * world_size + rank, so that N ranks
//   and one rank that accumulates N micro-batches draw the same masks.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t stream = 0;
  std::uint32_t op = 0;
};

// Philox4x32-10 (Salmon et al., SC'11): four random words for one counter.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);
// Words of elements 4*block .. 4*block+3 under `key`.
std::array<std::uint32_t, 4> random_block(const RandomKey& key, std::uint64_t block);

}  // namespace ddprun::engine
