#include "worker/models/builders.h"

namespace ddprun::engine {
namespace {

// torchvision's BasicBlock (ResNet-18, 34) or Bottleneck (50 and up, stride on the 3x3 convolution) under `name`.
Value residual_block(Graph& g, Value x, const std::string& name, std::int64_t width, std::int64_t stride,
                     bool bottleneck) {
  const Graph::Segment segment = g.checkpoint();
  const std::int64_t out = bottleneck ? 4 * width : width;
  Value shortcut = x;
  Value y;
  std::string last;
  if (bottleneck) {
    y = g.conv2d(x, name + ".conv1", {.out_channels = width, .kernel = 1});
    y = g.batch_norm(y, name + ".bn1", true);
    y = g.conv2d(y, name + ".conv2", {.out_channels = width, .kernel = 3, .stride = stride, .padding = 1});
    y = g.batch_norm(y, name + ".bn2", true);
    y = g.conv2d(y, name + ".conv3", {.out_channels = out, .kernel = 1});
    last = name + ".bn3";
  } else {
    y = g.conv2d(x, name + ".conv1", {.out_channels = width, .kernel = 3, .stride = stride, .padding = 1});
    y = g.batch_norm(y, name + ".bn1", true);
    y = g.conv2d(y, name + ".conv2", {.out_channels = out, .kernel = 3, .stride = 1, .padding = 1});
    last = name + ".bn2";
  }
  if (stride != 1 || g.shape(x).back() != out) {
    shortcut = g.conv2d(x, name + ".downsample.0", {.out_channels = out, .kernel = 1, .stride = stride});
    shortcut = g.batch_norm(shortcut, name + ".downsample.1");
  }
  return g.batch_norm_add(y, last, shortcut);
}

}  // namespace

std::optional<ResnetStages> resnet_stages(const std::string& name) {
  if (name == "resnet18") return ResnetStages{false, {2, 2, 2, 2}};
  if (name == "resnet34") return ResnetStages{false, {3, 4, 6, 3}};
  if (name == "resnet50") return ResnetStages{true, {3, 4, 6, 3}};
  if (name == "resnet101") return ResnetStages{true, {3, 4, 23, 3}};
  if (name == "resnet152") return ResnetStages{true, {3, 8, 36, 3}};
  return std::nullopt;
}

void build_resnet(const ModelConfig& config, std::int64_t batch_size, Model& model) {
  Graph& g = model.graph;
  const auto [bottleneck, blocks] = *resnet_stages(config.name);
  model.input = g.input("input", Shape{batch_size, config.image_size, config.image_size, config.channels}, DType::f32);
  Value x = model.input;
  if (config.stem == Stem::imagenet) {
    x = g.conv2d(x, "conv1", {.out_channels = config.width, .kernel = 7, .stride = 2, .padding = 3});
    x = g.batch_norm(x, "bn1", true);
    x = g.max_pool(x, {.kernel = 3, .stride = 2, .padding = 1});
  } else {
    x = g.conv2d(x, "conv1", {.out_channels = config.width, .kernel = 3, .stride = 1, .padding = 1});
    x = g.batch_norm(x, "bn1", true);
  }
  std::int64_t width = config.width;
  for (int stage = 0; stage < 4; ++stage, width *= 2) {
    for (int block = 0; block < blocks[static_cast<std::size_t>(stage)]; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      x = residual_block(g, x, name, width, stage > 0 && block == 0 ? 2 : 1, bottleneck);
    }
  }
  model.logits = g.linear(g.mean_pool(x), "fc", config.outputs);
}

}  // namespace ddprun::engine
