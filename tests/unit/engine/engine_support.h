#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "worker/engine/parameter_store.h"
#include "worker/engine/plan.h"
#include "worker/kernels/kernels.h"
#include "worker/models/models.h"

namespace ddprun::engine::testing {

// Small models that together use every op.
struct ModelCase {
  std::string name;
  ModelConfig config;
  LossConfig loss;
  std::int64_t batch = 4;
};
inline std::vector<ModelCase> small_models() {
  return {
      {"linear_mse", {.name = "linear", .inputs = 5, .outputs = 1}, {.kind = LossKind::mse}, 7},
      {"mlp", {.name = "mlp", .inputs = 9, .outputs = 4, .hidden = {11, 6}}, {.label_smoothing = 0.1}, 6},
      {"resnet18_small",
       {.name = "resnet18", .outputs = 5, .stem = Stem::small, .width = 3, .channels = 2, .image_size = 9},
       {},
       3},
      {"resnet50_imagenet", {.name = "resnet50", .outputs = 3, .width = 2, .channels = 3, .image_size = 33}, {}, 4},
      {"gpt2",
       {.name = "gpt2",
        .gpt2 = {.vocabulary = 13, .context = 9, .sequence_length = 7, .layers = 2, .heads = 2, .embedding = 6}},
       {},
       3},
      {"gpt2_dropout",
       {.name = "gpt2",
        .gpt2 = {.vocabulary = 13,
                 .context = 7,
                 .sequence_length = 7,
                 .layers = 2,
                 .heads = 3,
                 .embedding = 9,
                 .dropout = 0.2}},
       {.ignore_index = 3},
       2},
      {"mlp_gelu",
       {.name = "mlp", .inputs = 9, .outputs = 4, .hidden = {11, 6}, .activation = Activation::gelu},
       {},
       6},
      {"mlp_silu",
       {.name = "mlp", .inputs = 9, .outputs = 4, .hidden = {11, 6}, .activation = Activation::silu},
       {},
       6},
  };
}

// A model on a backend with weights from seed 3 and one batch of random data in it.
class Trial {
 public:
  Trial(const ModelCase& c, std::unique_ptr<Kernels> backend, const PlanOptions& options = {}, std::uint64_t seed = 3)
      : kernels(std::move(backend)), model(build_model(c.config, c.loss, c.batch).value()) {
    store = ParameterStore::create(model.graph, *kernels).value();
    initialise(c.config, *store, seed);
    store->allocate_gradients();
    plan = Plan::create(model.graph, *store, options).value();
    std::mt19937 random(17);
    std::normal_distribution<float> normal;
    input_ids = make_ids(random, model.input, c.config.gpt2.vocabulary);
    target_ids = make_ids(random, model.target, c.config.name == "gpt2" ? c.config.gpt2.vocabulary : c.config.outputs);
    input.resize(static_cast<std::size_t>(model.graph.shape(model.input).count()));
    target.resize(static_cast<std::size_t>(model.graph.shape(model.target).count()));
    for (float& x : input) x = normal(random);
    for (float& x : target) x = normal(random);
  }

  double forward(const RandomKey& key = {.seed = 5, .step = 2}) {
    load(model.input, input, input_ids);
    load(model.target, target, target_ids);
    plan->forward(key);
    return plan->loss();
  }
  void backward(const BackwardOptions& options = {}) { plan->backward(options, nullptr); }

  std::unique_ptr<Kernels> kernels;
  Model model;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<Plan> plan;
  std::vector<float> input, target;
  std::vector<std::int32_t> input_ids, target_ids;

 private:
  std::vector<std::int32_t> make_ids(std::mt19937& random, Value v, std::int64_t high) const {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(model.graph.shape(v).count()));
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % static_cast<unsigned>(high));
    return ids;
  }
  void load(Value v, const std::vector<float>& values, const std::vector<std::int32_t>& ids) {
    const bool is_ids = model.graph.values()[v.id].type == ValueSpec::Type::i32;
    const void* host = is_ids ? static_cast<const void*>(ids.data()) : static_cast<const void*>(values.data());
    plan->load(v, host).value();
  }
};

}  // namespace ddprun::engine::testing
