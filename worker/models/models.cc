#include "worker/models/models.h"

#include <fmt/format.h>

#include "worker/models/builders.h"

namespace ddprun::engine {
namespace {

Result<void> check(const ModelConfig& c, const LossConfig& loss) {
  auto need = [&](bool good, const std::string& what) -> Result<void> {
    if (good) return {};
    return Error(Errc::invalid_argument, fmt::format("model {}: {}", c.name, what));
  };
  if (loss.label_smoothing < 0 || loss.label_smoothing >= 1) {
    return need(false, fmt::format("label_smoothing {} is not in [0, 1)", loss.label_smoothing));
  }
  if (c.name == "linear" || c.name == "mlp") {
    if (auto r = need(c.inputs > 0, fmt::format("inputs must be positive, not {}", c.inputs)); !r) return r;
    for (std::int64_t h : c.hidden) {
      if (auto r = need(h > 0, fmt::format("hidden width {} is not positive", h)); !r) return r;
    }
    return need(c.outputs > 0, fmt::format("outputs must be positive, not {}", c.outputs));
  }
  if (resnet_stages(c.name)) {
    if (loss.kind == LossKind::mse) return need(false, "wants the loss cross_entropy, not mse");
    if (auto r = need(c.outputs > 0, fmt::format("outputs must be positive, not {}", c.outputs)); !r) return r;
    if (auto r = need(c.width > 0 && c.channels > 0, "width and channels must be positive"); !r) return r;
    return need(c.image_size >= 8, fmt::format("image_size {} is below 8", c.image_size));
  }
  if (c.name == "gpt2") {
    if (loss.kind == LossKind::mse) return need(false, "wants the loss cross_entropy, not mse");
    if (auto r = need(c.gpt2.layers > 0 && c.gpt2.heads > 0 && c.gpt2.embedding > 0 && c.gpt2.vocabulary > 0,
                      "sizes must be positive");
        !r) {
      return r;
    }
    if (auto r = need(c.gpt2.embedding % c.gpt2.heads == 0,
                      fmt::format("embedding {} is no multiple of heads {}", c.gpt2.embedding, c.gpt2.heads));
        !r) {
      return r;
    }
    if (auto r =
            need(c.gpt2.dropout >= 0 && c.gpt2.dropout < 1, fmt::format("dropout {} is not in [0, 1)", c.gpt2.dropout));
        !r)
      return r;
    return need(c.gpt2.sequence_length > 0 && c.gpt2.sequence_length <= c.gpt2.context,
                fmt::format("sequence_length {} is not in 1..{} (context)", c.gpt2.sequence_length, c.gpt2.context));
  }
  return need(false, "unknown; known are linear, mlp, resnet18, 34, 50, 101, 152, gpt2");
}

}  // namespace

Result<Model> build_model(const ModelConfig& config, const LossConfig& loss, std::int64_t batch_size) {
  if (auto good = check(config, loss); !good) return std::move(good).error();
  if (batch_size <= 0) return Error(Errc::invalid_argument, fmt::format("batch size {} is not positive", batch_size));
  Model model;
  if (config.name == "gpt2") {
    build_gpt2(config, batch_size, model);
  } else if (config.name == "linear" || config.name == "mlp") {
    build_mlp(config, batch_size, model);
  } else {
    build_resnet(config, batch_size, model);
  }
  Graph& g = model.graph;
  g.mark_output(model.logits);
  const Shape logits = g.shape(model.logits);
  if (loss.kind == LossKind::mse) {
    model.target = g.input("target", logits, DType::f32);
    model.loss = g.mse(model.logits, model.target);
  } else {
    model.target = g.input("target", Shape(logits.extents().first(logits.rank() - 1)), DType::i32);
    model.loss = g.cross_entropy(model.logits, model.target,
                                 {.label_smoothing = loss.label_smoothing, .ignore_index = loss.ignore_index});
  }
  g.set_loss(model.loss);
  return model;
}

}  // namespace ddprun::engine
