#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "common/check.h"
#include "worker/models/builders.h"
#include "worker/models/models.h"
#include "worker/tensor/rng.h"

namespace ddprun::engine {
namespace {

// Draws in the order in which torch constructs modules, by parameter name.
class Initialiser {
 public:
  Initialiser(ParameterStore& store, std::uint64_t seed) : store_(store), generator_(seed) {}

  bool has(const std::string& name) const { return store_.find(name).has_value(); }

  // torch.nn.Linear and Conv2d as constructed: kaiming_uniform(a = sqrt 5), that is U(+-1/sqrt(fan_in)), bias alike.
  void module(const std::string& name) {
    const Parameter& w = parameter(name + ".weight");
    // nn.init computes sqrt(3) * (gain / sqrt(fan_in)) in this order; the last bits follow it.
    const double fan_in = static_cast<double>(w.shape.count() / w.shape[0]);
    const double gain = std::sqrt(2.0 / (1.0 + 5.0));
    const double bound = std::sqrt(3.0) * (gain / std::sqrt(fan_in));
    uniform(w, bound);
    if (has(name + ".bias")) uniform(parameter(name + ".bias"), 1.0 / std::sqrt(fan_in));
  }
  void uniform(const Parameter& p, double bound) {
    const std::span<float> values = space(p.count());
    generator_.uniform(values, -bound, bound);
    store_.write_f32(p.id, values);
  }
  void normal(const std::string& name, double std) {
    const Parameter& p = parameter(name);
    const std::span<float> values = space(p.count());
    generator_.normal(values, 0, std);
    store_.write_f32(p.id, values);
  }
  // Moves past the numbers that normal(name) would draw.
  void skip_normal(const std::string& name) { generator_.skip_normal(parameter(name).count()); }
  void kaiming_normal_fan_out(const std::string& name) {
    const Parameter& p = parameter(name);
    const double fan_out = static_cast<double>(p.shape.count() / p.shape[1]);
    normal(name, std::sqrt(2.0) / std::sqrt(fan_out));
  }
  void fill(const Parameter& p, float value) {
    if (p.on_host) {
      const std::int64_t zero = 0;
      store_.write(p.id, &zero);
      return;
    }
    const std::span<float> values = space(p.count());
    std::fill(values.begin(), values.end(), value);
    store_.write_f32(p.id, values);
  }

 private:
  std::span<float> space(std::size_t count) {
    if (values_.size() < count) values_.resize(count);
    return std::span(values_).first(count);
  }
  const Parameter& parameter(const std::string& name) const {
    const auto id = store_.find(name);
    CHECK(id.has_value(), "initialise(): the store is of another model");
    return store_[*id];
  }

  ParameterStore& store_;
  Generator generator_;
  std::vector<float> values_;  // of the tensor in work
};

void initialise_resnet(const ModelConfig& config, Initialiser& init) {
  // Construction: a block's downsample convolution is made before the block itself. modules() walks in definition
  // order.
  std::vector<std::string> constructed = {"conv1"}, walked = {"conv1"};
  const auto [bottleneck, blocks] = *resnet_stages(config.name);
  for (int stage = 0; stage < 4; ++stage) {
    for (int block = 0; block < blocks[static_cast<std::size_t>(stage)]; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      const bool down = init.has(name + ".downsample.0.weight");
      if (down) constructed.push_back(name + ".downsample.0");
      for (int conv = 1; conv <= (bottleneck ? 3 : 2); ++conv) {
        constructed.push_back(name + ".conv" + std::to_string(conv));
        walked.push_back(constructed.back());
      }
      if (down) walked.push_back(name + ".downsample.0");
    }
  }
  for (const std::string& name : constructed) init.module(name);
  init.module("fc");
  for (const std::string& name : walked) init.kaiming_normal_fan_out(name + ".weight");
}

// Hugging Face's constructor draws everything, then draws everything again by its own rules, and the projections into
// the residual stream a third time. Only the last numbers stay.
void initialise_gpt2(const ModelConfig& config, Initialiser& init) {
  const double narrow = 0.02 / std::sqrt(2.0 * static_cast<double>(config.gpt2.layers));
  const char* const matrices[] = {".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight",
                                  ".mlp.c_proj.weight"};
  auto layer_name = [](std::int64_t layer) { return "transformer.h." + std::to_string(layer); };
  const std::string tokens = "transformer.wte.weight", positions = "transformer.wpe.weight";
  init.skip_normal(tokens);
  init.skip_normal(positions);
  for (std::int64_t layer = 0; layer < config.gpt2.layers; ++layer) {
    for (const char* matrix : matrices) init.skip_normal(layer_name(layer) + matrix);
  }
  init.normal(tokens, 0.02);
  init.normal(positions, 0.02);
  for (std::int64_t layer = 0; layer < config.gpt2.layers; ++layer) {
    for (const char* matrix : matrices) {
      const std::string name = layer_name(layer) + matrix;
      const bool into_residual = name.ends_with(".c_proj.weight");
      if (into_residual) init.skip_normal(name);
      init.normal(name, into_residual ? narrow : 0.02);
    }
  }
}

}  // namespace

void initialise(const ModelConfig& config, ParameterStore& store, std::uint64_t seed) {
  Initialiser init(store, seed);
  for (const Parameter& p : store.parameters()) {
    if (config.init == Init::standard && p.shape.rank() >= 2) continue;  // all of these are drawn below
    // Norms are the only vectors called weight; running_var is their other 1.
    const bool one = (p.shape.rank() == 1 && p.name.ends_with(".weight")) || p.name.ends_with(".running_var");
    init.fill(p, one ? 1.0f : 0.0f);
  }
  if (config.init == Init::zeros) return;
  if (config.name == "gpt2") {
    initialise_gpt2(config, init);
  } else if (config.name == "linear") {
    init.module("fc");
  } else if (config.name == "mlp") {
    for (std::size_t layer = 1; layer <= config.hidden.size() + 1; ++layer) init.module("fc" + std::to_string(layer));
  } else {
    initialise_resnet(config, init);
  }
}

}  // namespace ddprun::engine
