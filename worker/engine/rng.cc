#include "worker/engine/rng.h"

#include <cmath>
#include <numbers>

namespace ddprun::engine {

float Generator::uniform24() { return static_cast<float>(draw32() & 0xFFFFFFu) * 0x1p-24f; }

std::uint64_t Generator::draw64() {
  const std::uint64_t high = draw32();
  return (high << 32) | draw32();
}

double Generator::uniform_f64() { return static_cast<double>(draw64() & ((1ULL << 53) - 1)) * 0x1p-53; }

void Generator::uniform(std::span<float> out, double low, double high) {
  const float from = static_cast<float>(low);
  const float width = static_cast<float>(high) - from;
  for (float& x : out) x = std::fma(uniform24(), width, from);
}

double Generator::next_normal() {
  if (cached_normal_) {
    const double value = *cached_normal_;
    cached_normal_.reset();
    return value;
  }
  const double u1 = uniform_f64();
  const double u2 = uniform_f64();
  const double r = std::sqrt(-2.0 * std::log1p(-u2));
  const double t = 2.0 * std::numbers::pi * u1;
  cached_normal_ = r * std::sin(t);
  return r * std::cos(t);
}

void Generator::normal(std::span<float> out, double mean, double std) {
  const std::size_t n = out.size();
  if (n < 16) {
    for (float& x : out) x = static_cast<float>(next_normal() * std + mean);
    return;
  }
  for (float& x : out) x = uniform24();
  const float m = static_cast<float>(mean), s = static_cast<float>(std);
  auto transform = [m, s](float* x) {
    for (int j = 0; j < 8; ++j) {
      const float u1 = 1.0f - x[j];
      const float r = std::sqrt(-2.0f * std::log(u1));
      const float t = 2.0f * std::numbers::pi_v<float> * x[j + 8];
      x[j] = r * std::cos(t) * s + m;
      x[j + 8] = r * std::sin(t) * s + m;
    }
  };
  for (std::size_t i = 0; i + 16 <= n; i += 16) transform(&out[i]);
  if (n % 16 != 0) {
    for (std::size_t i = n - 16; i < n; ++i) out[i] = uniform24();
    transform(&out[n - 16]);
  }
}

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

std::array<std::uint32_t, 4> random_block(const RandomKey& key, std::uint64_t block) {
  // 64 bits of seed are the key; block (40 bits), op (24 bits), stream and step (32 bits each) the counter.
  return philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32) | (key.op << 8), key.stream,
                 static_cast<std::uint32_t>(key.step)},
                {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)});
}

}  // namespace ddprun::engine
