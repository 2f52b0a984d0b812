#include "worker/tensor/rng.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace ddprun::engine {
namespace {

// The arithmetic below is torch's to the bit: its CPU build takes log, sin and cos of normal_() from the Cephes
// polynomials and contracts a * b + c to one rounding. So every such place says fma(), the compiler is told to contract
// nothing else (-ffp-contract=off for this file), and all machines get the same numbers. Loops are compiled twice,
// since without the instruction fma() is a function call.
inline float fma32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// Natural logarithm of x in (0, 1].
[[gnu::always_inline]] inline float log32(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const bool small = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f000000u) < 0.707106781186547524f;
  const float mantissa = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f000000u);  // [0.5, 1)
  const float exponent = static_cast<float>(static_cast<int>(bits >> 23) - 126) - (small ? 1.0f : 0.0f);
  const float f = (mantissa - 1.0f) + (small ? mantissa : 0.0f);
  const float z = f * f;
  float y = 7.0376836292e-2f;
  y = fma32(y, f, -1.1514610310e-1f);
  y = fma32(y, f, 1.1676998740e-1f);
  y = fma32(y, f, -1.2420140846e-1f);
  y = fma32(y, f, 1.4249322787e-1f);
  y = fma32(y, f, -1.6668057665e-1f);
  y = fma32(y, f, 2.0000714765e-1f);
  y = fma32(y, f, -2.4999993993e-1f);
  y = fma32(y, f, 3.3333331174e-1f);
  y = fma32(y * f, z, exponent * -2.12194440e-4f);
  y = fma32(z, -0.5f, y);
  return fma32(exponent, 0.693359375f, f + y);
}

struct SinCos {
  float sin, cos;
};

// Of an angle in [0, 2 pi].
[[gnu::always_inline]] inline SinCos sin_cos32(float x) {
  const int octant = (static_cast<int>(x * 1.27323954473516f) + 1) & ~1;
  const float turns = static_cast<float>(octant);
  x = fma32(turns, -0.78515625f, x);
  x = fma32(turns, -2.4187564849853515625e-4f, x);
  x = fma32(turns, -3.77489497744594108e-8f, x);
  const float z = x * x;
  float even = 2.443315711809948e-5f;
  even = fma32(even, z, -1.388731625493765e-3f);
  even = fma32(even, z, 4.166664568298827e-2f);
  even = fma32(even * z, z, -(z * 0.5f)) + 1.0f;
  float odd = -1.9515295891e-4f;
  odd = fma32(odd, z, 8.3321608736e-3f);
  odd = fma32(odd, z, -1.6666654611e-1f);
  odd = fma32(odd * z, x, x);
  const bool straight = (octant & 2) == 0;
  const float sine = straight ? odd : even, cosine = straight ? even : odd;
  return {(octant & 4) != 0 ? -sine : sine, ((octant - 2) & 4) == 0 ? -cosine : cosine};
}

// Box-Muller on groups of 16: uniforms 0..7 give radii, 8..15 angles.
[[gnu::always_inline]] inline void normals(float* x, std::size_t groups, float mean, float std) {
  for (; groups > 0; --groups, x += 16) {
    for (int j = 0; j < 8; ++j) {
      const float radius = __builtin_sqrtf(-2.0f * log32(1.0f - x[j]));
      const SinCos angle = sin_cos32(2.0f * std::numbers::pi_v<float> * x[j + 8]);
      x[j] = fma32(radius * angle.cos, std, mean);
      x[j + 8] = fma32(radius * angle.sin, std, mean);
    }
  }
}
[[gnu::always_inline]] inline void stretch(float* x, std::size_t count, float width, float from) {
  for (std::size_t i = 0; i < count; ++i) x[i] = fma32(x[i], width, from);
}

std::uint32_t temper(std::uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

struct Loops {
  void (*normals)(float* x, std::size_t groups, float mean, float std);
  void (*stretch)(float* x, std::size_t count, float width, float from);
};

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void normals_fma(float* x, std::size_t groups, float mean, float std) {
  normals(x, groups, mean, std);
}
[[gnu::target("avx2,fma")]] void stretch_fma(float* x, std::size_t count, float width, float from) {
  stretch(x, count, width, from);
}
Loops choose() {
  if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) return {normals_fma, stretch_fma};
  return {normals, stretch};
}
#else
Loops choose() { return {normals, stretch}; }
#endif

}  // namespace

MersenneTwister::MersenneTwister(std::uint32_t seed) {
  state_[0] = seed;
  for (std::size_t i = 1; i < kWords; ++i) {
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<std::uint32_t>(i);
  }
}

void MersenneTwister::renew() {
  constexpr std::size_t kShift = 397, kRest = kWords - kShift;
  auto twist = [](std::uint32_t high, std::uint32_t low) {
    const std::uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (y >> 1) ^ ((0u - (y & 1u)) & 0x9908b0dfu);
  };
  std::uint32_t* s = state_.data();
  for (std::size_t i = 0; i < kRest; ++i) s[i] = s[i + kShift] ^ twist(s[i], s[i + 1]);
  for (std::size_t i = kRest; i < kWords - 1; ++i) s[i] = s[i - kRest] ^ twist(s[i], s[i + 1]);
  s[kWords - 1] = s[kShift - 1] ^ twist(s[kWords - 1], s[0]);
  next_ = 0;
}

std::uint32_t MersenneTwister::next() {
  if (next_ == kWords) renew();
  return temper(state_[next_++]);
}

void MersenneTwister::discard(std::size_t count) {
  while (count > kWords - next_) {
    count -= kWords - next_;
    renew();
  }
  next_ += count;
}

void MersenneTwister::fill(std::span<float> out) {
  while (!out.empty()) {
    if (next_ == kWords) renew();
    const std::size_t count = std::min(out.size(), kWords - next_);
    const std::uint32_t* words = state_.data() + next_;
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = static_cast<float>(static_cast<int>(temper(words[i]) & 0xFFFFFFu)) * 0x1p-24f;
    }
    next_ += count;
    out = out.subspan(count);
  }
}

std::uint64_t Generator::draw64() {
  const std::uint64_t high = draw32();
  return (high << 32) | draw32();
}

double Generator::uniform_f64() { return static_cast<double>(draw64() & ((1ULL << 53) - 1)) * 0x1p-53; }

void Generator::uniform(std::span<float> out, double low, double high) {
  const float from = static_cast<float>(low);
  engine_.fill(out);
  choose().stretch(out.data(), out.size(), static_cast<float>(high) - from, from);
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
  const float m = static_cast<float>(mean), s = static_cast<float>(std);
  const Loops loops = choose();
  engine_.fill(out);
  loops.normals(out.data(), n / 16, m, s);
  if (n % 16 != 0) {  // torch draws the last 16 anew
    const std::span<float> last = out.last(16);
    engine_.fill(last);
    loops.normals(last.data(), 1, m, s);
  }
}

void Generator::skip_normal(std::size_t count) {
  if (count >= 16) {
    engine_.discard(count + (count % 16 != 0 ? 16 : 0));
  } else {
    while (count-- > 0) next_normal();
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
