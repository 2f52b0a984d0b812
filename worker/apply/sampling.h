#pragma once

#include <cstdint>
#include <span>

#include "worker/tensor/rng.h"

namespace ddprun::trainer {

// How the next token is chosen from the logits.
struct Sampling {
  double temperature = 0;  // 0: the largest; else logits are divided by it
  std::int64_t top_k = 0;  // among so many largest only; 0: all
  double top_p = 1;        // among the fewest whose probabilities reach this
};

// The first of equally large ones, as torch's argmax. Same logits, settings and generator state: same token.
std::int64_t choose_token(std::span<const float> logits, const Sampling& sampling, engine::Generator& random);

}  // namespace ddprun::trainer
