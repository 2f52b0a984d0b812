#include "worker/tools/init.h"

#include <fmt/format.h>

#include <cstdio>

#include "common/options.h"
#include "worker/tools/subcommand.h"

namespace ddprun::trainer {
namespace {

constexpr const char* kCsv = R"(# A table: which class is a row? Train with
#   trainer --check --config FILE         # what will be read and trained
#   trainer --config FILE                 # or: ddprun --standalone --nproc-per-node=4 trainer --config FILE
#   trainer predict --config FILE --weights runs/table new.csv
model:
  name: mlp
  hidden: [64, 64]
  norm: layer            # none, layer or batch
  dropout: 0.1
data:
  format: csv
  train: data.csv        # also a list or a pattern: ["2024/*.csv", last.csv]
  # target: price        # a column by its name or number; without it the last one
  # columns: [size, age] # inputs; without it all other columns
  validation_share: 0.1  # or validation: FILE
  batch_size: 64
  # normalize: {mean: [0, 0], std: [1, 1]}   # one number, or one for each input column
loss: cross_entropy      # classes, as numbers from 0 or as words. For numbers as targets: mse
optimizer: {name: adamw, lr: 1e-3, weight_decay: 0.01}
schedule: {name: cosine}
train: {epochs: 20, seed: 0}
validation: {patience: 5}                     # ends the run after 5 epochs without a gain
checkpoint: {dir: runs/table, best: loss}     # runs/table/best has the best one
log: {file: runs/table/train.log}
output: {metrics: runs/table/metrics.jsonl}   # trainer plot runs/table/metrics.jsonl
)";

constexpr const char* kRegression = R"(# A table: which number belongs to a row? Train with
#   trainer --check --config FILE         # what will be read and trained
#   trainer --config FILE                 # or: ddprun --standalone --nproc-per-node=4 trainer --config FILE
#   trainer predict --config FILE --weights runs/numbers new.csv
model: {name: mlp, hidden: [64, 64]}
data:
  format: csv
  train: data.csv
  # target: price        # a column by its name or number; without it the last one
  # columns: [size, age] # inputs; without it all other columns
  validation_share: 0.1
  batch_size: 64
  # normalize: {mean: [0, 0], std: [1, 1]}   # one number, or one for each input column
loss: mse
optimizer: {name: adamw, lr: 1e-3}
schedule: {name: cosine}
train: {epochs: 50, seed: 0}
validation: {patience: 10}
checkpoint: {dir: runs/numbers, best: loss}
log: {file: runs/numbers/train.log}
output: {metrics: runs/numbers/metrics.jsonl}
)";

constexpr const char* kImages =
    R"(# Pictures, a folder for each class: pictures/cat/1.jpg, pictures/dog/2.png, ... Train with
#   trainer --check --config FILE         # what will be read and trained
#   trainer --config FILE                 # or: ddprun --standalone --nproc-per-node=4 trainer --config FILE
#   trainer predict --config FILE --weights runs/pictures some/picture.jpg
model:
  name: resnet18         # resnet34, 50, 101, 152
  stem: small            # imagenet for pictures of 128 pixels and more
  # weights: FILE        # safetensors of torchvision's names: goes on from trained weights
data:
  format: image_folder
  train: pictures
  validation_share: 0.1  # or validation: another folder with the same classes
  image_size: 64         # pictures are scaled and cut to this
  batch_size: 32
  augment: [crop, flip]
  normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
loss: cross_entropy
optimizer: {name: sgd, lr: 0.05, momentum: 0.9, nesterov: true, weight_decay: 5e-4}
schedule: {name: cosine}
train: {epochs: 30, seed: 0}
validation: {confusion: runs/pictures/confusion}
checkpoint: {dir: runs/pictures, best: accuracy}
log: {file: runs/pictures/train.log}
output: {metrics: runs/pictures/metrics.jsonl}
)";

constexpr const char* kText = R"(# A small GPT on your own text, byte by byte. First make tokens of it:
#   trainer tokenize --vocabulary bytes --validation-share 0.05 -o text my.txt     # text.bin, text-validation.bin
#   trainer --check --config FILE
#   trainer --config FILE                 # or: ddprun --standalone --nproc-per-node=4 trainer --config FILE
#   trainer generate --weights runs/text --prompt "Once" --temperature 0.8
model: {name: gpt2, vocabulary: 256, context: 128, layers: 4, heads: 4, embedding: 128, dropout: 0.1}
data:
  format: tokens
  train: text.bin        # also a list or a pattern: "shards/*.bin"
  validation: text-validation.bin
  sequence_length: 128
  batch_size: 16
loss: cross_entropy
optimizer: {name: adamw, lr: 1e-3, betas: [0.9, 0.95], weight_decay: 0.1, decay_matrices_only: true, clip_grad_norm: 1.0}
schedule: {name: cosine, warmup_steps: 50, min_lr: 1e-4}
train: {epochs: 3, seed: 0}
validation: {every_steps: 200}
checkpoint: {dir: runs/text, best: loss}
log: {file: runs/text/train.log}
output: {metrics: runs/text/metrics.jsonl}
)";

constexpr StarterConfig kStarters[] = {{"csv", "a table of numbers whose target is a class", kCsv},
                                       {"regression", "a table of numbers whose target is a number", kRegression},
                                       {"images", "folders of pictures, one for each class", kImages},
                                       {"text", "a small GPT on a text", kText}};

std::string kinds() {
  std::string text;
  for (const StarterConfig& starter : kStarters) text += fmt::format("  {:<11} {}\n", starter.kind, starter.what);
  return text;
}

Result<void> run(const ParsedOptions& options) {
  std::vector<std::string> names;
  for (const StarterConfig& starter : kStarters) {
    if (options.rest()[0] == starter.kind) {
      std::fputs(starter.text, stdout);
      return {};
    }
    names.emplace_back(starter.kind);
  }
  const auto near = nearest_name(options.rest()[0], names);
  return Error(Errc::invalid_argument,
               fmt::format("unknown kind '{}'{} (kinds: {})", options.rest()[0],
                           near ? ": did you mean '" + *near + "'?" : "", fmt::join(names, ", ")));
}

}  // namespace

std::span<const StarterConfig> starter_configs() { return kStarters; }

int init_main(std::span<const std::string> arguments) {
  const OptionTable table("trainer init", "trainer init KIND > my.yaml\n\nKinds:\n" + kinds(), {}, RestPolicy::list);
  const auto misuse = [](const ParsedOptions& options) -> std::string {
    return options.rest().size() == 1 ? "" : "needs one kind:\n" + kinds();
  };
  return run_subcommand("init", table, arguments, misuse, run);
}

}  // namespace ddprun::trainer
