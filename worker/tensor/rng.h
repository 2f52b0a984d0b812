#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace ddprun::engine {

// MT19937 (Matsumoto and Nishimura, 1998) with 32-bit words and in blocks, several times as fast as std::mt19937.
class MersenneTwister {
 public:
  explicit MersenneTwister(std::uint32_t seed);
  std::uint32_t next();
  void discard(std::size_t count);
  // Multiples of 2^-24 in [0, 1): the low 24 bits of one draw each.
  void fill(std::span<float> out);

 private:
  static constexpr std::size_t kWords = 624;

  void renew();

  std::array<std::uint32_t, kWords> state_;
  std::size_t next_ = kWords;  // word of the block that comes next
};

// Draws numbers as torch's CPU generator does after torch.manual_seed(seed), so that the same seed gives the same
// initial weights: equal to the bit to torch 2.15 on x86-64 with AVX2, uniforms and normals (checked over 2^20 of
// each). Here every machine gives these bits; torch without AVX2 differs by an ulp or two in normals.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

  void uniform(std::span<float> out, double low, double high);  // fp32 uniform_(low, high)
  void normal(std::span<float> out, double mean, double std);   // fp32 normal_(mean, std)
  void skip_normal(std::size_t count);                          // as if normal() had drawn `count` numbers
  double uniform_f64();                                         // [0, 1), 53 bits
  std::uint32_t draw32() { return engine_.next(); }
  std::uint64_t draw64();  // first draw is the high half

 private:
  double next_normal();

  MersenneTwister engine_;
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
