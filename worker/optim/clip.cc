#include "worker/optim/clip.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "worker/optim/chunks.h"

namespace ddprun::optim {

std::vector<engine::UpdateChunk> parameter_chunks(const engine::ParameterStore& store) {
  constexpr std::size_t kChunk = 32768;
  std::vector<engine::UpdateChunk> chunks;
  for (const engine::Parameter& p : store.parameters()) {
    if (!p.trainable) continue;
    CHECK(p.gradient != nullptr, "no gradient memory bound");
    const std::size_t width = engine::size_of(p.dtype);
    for (std::size_t begin = 0; begin < p.count(); begin += kChunk) {
      engine::UpdateChunk chunk;
      chunk.parameter = static_cast<char*>(p.data) + begin * width;
      chunk.gradient = static_cast<char*>(p.gradient) + begin * width;
      if (p.mirror != nullptr) {
        chunk.low = static_cast<char*>(p.mirror) + begin * engine::size_of(store.kernels().activation_type());
      }
      chunk.count = static_cast<std::int64_t>(std::min(kChunk, p.count() - begin));
      chunks.push_back(chunk);
    }
  }
  return chunks;
}

GradientSummary summarise_gradients(const engine::ParameterStore& store, double unscale) {
  const engine::GradientNorm norm = store.kernels().gradient_norm(parameter_chunks(store), unscale);
  return {.norm = std::sqrt(norm.squared), .found_inf = norm.found_inf};
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1 ? 1 : factor;  // nan stays nan
}

}  // namespace ddprun::optim
