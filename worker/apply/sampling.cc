#include "worker/apply/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace ddprun::trainer {

std::int64_t choose_token(std::span<const float> logits, const Sampling& sampling, engine::Generator& random) {
  if (sampling.temperature <= 0) return std::max_element(logits.begin(), logits.end()) - logits.begin();
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&logits](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < order.size()) {
    order.resize(static_cast<std::size_t>(sampling.top_k));
  }
  std::vector<double> weights;
  for (const std::size_t token : order) {
    weights.push_back(std::exp((static_cast<double>(logits[token]) - logits[order[0]]) / sampling.temperature));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < sampling.top_p * sum)) kept += weights[count++];
  double point = random.uniform_f64() * kept;
  for (std::size_t i = 0; i < count; ++i) {
    point -= weights[i];
    if (point < 0) return static_cast<std::int64_t>(order[i]);
  }
  return static_cast<std::int64_t>(order[count - 1]);
}

}  // namespace ddprun::trainer
