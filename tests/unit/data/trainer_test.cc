#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "worker/apply/sampling.h"
#include "worker/config/config.h"
#include "worker/report/confusion.h"
#include "worker/report/metrics.h"
#include "worker/report/progress.h"
#include "worker/report/tensorboard.h"
#include "worker/run/advice.h"
#include "worker/run/leak_check.h"
#include "worker/run/model_card.h"
#include "worker/run/open_data.h"
#include "worker/run/validation.h"
#include "worker/tools/init.h"

namespace ddprun::trainer {
namespace {

using ::testing::HasSubstr;

const char* const kSmall = R"(model: {name: linear}
data:
  format: csv
  train: a.csv
)";

std::string error_of(const std::string& text, const std::vector<std::string>& set = {}) {
  auto config = parse_config(text, "f.yaml", set);
  return config ? "no error" : config.error().message();
}

TEST(TrainerConfig, DefaultsAreThoseOfTheSchema) {
  auto config = parse_config(kSmall, "f.yaml", {});
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->data.batch_size, 64);
  EXPECT_TRUE(config->data.shuffle);
  EXPECT_EQ(config->update.schedule.lr, 0.1);
  EXPECT_EQ(config->update.optimizer.weight_decay, 0);
  EXPECT_EQ(config->train.epochs, 5);
  EXPECT_EQ(config->checkpoint.every_steps, 100);
  EXPECT_EQ(config->checkpoint.resume, "auto");
  EXPECT_EQ(config->precision.scaler.scale, 65536.0F);
  EXPECT_FALSE(config->precision.scale_loss);
  EXPECT_EQ(config->log.file, "train.log");
  EXPECT_TRUE(config->output.metrics.empty());
}

TEST(TrainerConfig, ReadsEveryKey) {
  auto config = parse_config(R"(
model: {name: gpt2, layers: 2, heads: 4, embedding: 64, vocabulary: 256, context: 128, dropout: 0.1}
data: {format: tokens, train: a.bin, validation: b.bin, batch_size: 8, sequence_length: 128, num_workers: 3, prefetch_factor: 4,
       persistent_workers: false, pin_memory: false, drop_last: true}
loss: {name: cross_entropy, label_smoothing: 0.1, ignore_index: -1}
optimizer: {name: adamw, lr: 6.0e-4, betas: [0.9, 0.95], eps: 1e-9, weight_decay: 0.1, clip_grad_norm: 1.0}
schedule: {name: cosine, warmup_steps: 100, min_lr: 6e-5}
train: {epochs: 2, max_steps: 50, seed: 3, accumulate: 4, activation_checkpointing: true, on_nan: skip, memory_limit_mb: 4000}
ddp: {bucket_cap_mb: 4, first_bucket_mb: 0.5, overlap: false, compression: bf16, force_compression: true, sync_buffers: step, backend: cpu, timeout_s: 5}
precision: {dtype: fp16, init_scale: 1024, growth_interval: 10}
checkpoint: {dir: ck, every_steps: 7, keep: 2, resume: none}
log: {file: l.log, every_steps: 1, memory_check: false}
output: {metrics: m.jsonl, indices: i, tensorboard: tb}
)",
                             "f.yaml", {"data.batch_size=32", "train.seed=9"});
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->data.batch_size, 32);
  EXPECT_EQ(config->train.seed, 9U);
  EXPECT_TRUE(config->precision.scale_loss);
  EXPECT_EQ(config->update.optimizer.beta2, 0.95);
  EXPECT_EQ(config->ddp.timeout.count(), 5000);
  EXPECT_EQ(config->loss.ignore_index, -1);
  EXPECT_EQ(config->train.on_nan, OnNan::skip);
}

TEST(TrainerConfig, LossMayBeJustItsName) {
  auto config = parse_config(std::string(kSmall) + "loss: mse\n", "f.yaml", {});
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->loss.kind, engine::LossKind::mse);
}

TEST(TrainerConfig, ErrorsNameFileLineAndKey) {
  EXPECT_THAT(error_of(std::string(kSmall) + "optimizer: {learning_rat: 3}\n"),
              ::testing::AllOf(HasSubstr("f.yaml:5"), HasSubstr("learning_rat")));
  EXPECT_THAT(error_of(std::string(kSmall) + "  batch_size: many\n"),
              ::testing::AllOf(HasSubstr("f.yaml:5"), HasSubstr("data.batch_size"), HasSubstr("many")));
  EXPECT_THAT(error_of(std::string(kSmall) + "  batch_size: 0\n"), HasSubstr("data.batch_size"));
  EXPECT_THAT(error_of("model: {name: lineer}\ndata: {format: csv, train: a}\n"), HasSubstr("lineer"));
  EXPECT_THAT(error_of("data: {format: csv, train: a}\n"), HasSubstr("model.name"));
  EXPECT_THAT(error_of("model: {name: linear}\ndata: {format: csv}\n"), HasSubstr("data.train"));
  EXPECT_THAT(error_of(std::string(kSmall) + "ddp: {compression: zip}\n"), HasSubstr("ddp.compression"));
  EXPECT_THAT(error_of(std::string(kSmall) + "train: {epochs: 0}\n"), HasSubstr("train.epochs"));
  EXPECT_THAT(error_of(kSmall, {"data.batch=3"}), HasSubstr("batch"));
}

// A typo in a key that must be there is told as such, not as a key that is missing.
TEST(TrainerConfig, TyposOfRequiredKeysAreNamed) {
  const std::string data = "data: {format: csv, train: a}\n";
  EXPECT_EQ(error_of("modl: {name: mlp}\n" + data), "f.yaml:1: modl: unknown key: did you mean 'model'?");
  EXPECT_EQ(error_of("model: {nam: mlp}\n" + data), "f.yaml:1: model.nam: unknown key: did you mean 'name'?");
  EXPECT_EQ(error_of("model: {name: mlp}\ndata: {format: csv, trian: a}\n"),
            "f.yaml:2: data.trian: unknown key: did you mean 'train'?");
  EXPECT_EQ(error_of("model: {name: mlp}\ndata: {fromat: csv, train: a}\n"),
            "f.yaml:2: data.fromat: unknown key: did you mean 'format'?");
  EXPECT_EQ(error_of("model: {name: mlp}\ndata: {format: npy, train: {input: a, targets: b}}\n"),
            "f.yaml:2: data.train.input: unknown key: did you mean 'inputs'?");
}

// What --check can know it says, with file and line: not the first step.
TEST(TrainerConfig, ValuesThatDoNotFitEachOther) {
  const auto wrong = [](const std::string& assignments) {
    std::vector<std::string> set;
    std::istringstream in(assignments);
    for (std::string one; in >> one;) set.push_back(one);
    return error_of("model: {name: linear}\ndata: {format: csv, train: a}\n", set);
  };
  const std::string gpt = "model.name=gpt2 data.format=tokens data.sequence_length=16 ";
  EXPECT_EQ(wrong(gpt), "no error");
  EXPECT_EQ(wrong(gpt + "model.embedding=8 model.heads=3"), "--set model.embedding: 8 is no multiple of model.heads 3");
  EXPECT_EQ(wrong(gpt + "model.context=8"), "--set data.sequence_length: 16 is above model.context 8");
  EXPECT_THAT(wrong(gpt + "data.format=csv"), HasSubstr("model gpt2 does not fit csv data"));
  EXPECT_THAT(wrong("data.format=tokens"), HasSubstr("model linear does not fit tokens data"));
  EXPECT_THAT(wrong(gpt + "loss.name=mse"), HasSubstr("mse is not for model gpt2"));
  EXPECT_EQ(wrong("data.format=npy"), "f.yaml:2: data.train: npy data are two files: {inputs: FILE, targets: FILE}");
  EXPECT_THAT(error_of("model: {name: linear}\ndata: {format: csv, train: {inputs: a, targets: b}}\n"),
              HasSubstr("f.yaml:2: data.train.targets: csv data have no file of targets: the last column"));
  EXPECT_THAT(wrong("model.name=resnet18"), HasSubstr("model resnet18 needs square images, csv data have none"));
  EXPECT_THAT(wrong("model.name=resnet18 data.format=image_folder data.image_size=4"), HasSubstr("4 is below 8"));
  EXPECT_THAT(wrong("data.augment=[flip]"), HasSubstr("data.augment: csv data are no images"));
  EXPECT_THAT(wrong("model.name=mlp model.frozen=fc1"), HasSubstr("model.frozen: no parameter is named"));
  EXPECT_THAT(wrong("model.name=resnet18 data.format=image_folder model.frozen=[conv1]"), HasSubstr("'conv1.*'"));
  EXPECT_EQ(wrong("model.name=resnet18 data.format=image_folder model.frozen=[conv1.*]"), "no error");
  EXPECT_THAT(wrong("model.name=mlp model.frozen=[nothing*]"), HasSubstr("no parameter matches 'nothing*'"));
  EXPECT_THAT(wrong("schedule.name=multi_step"), HasSubstr("schedule.milestones: is missing"));
  EXPECT_THAT(wrong("validation.patience=3"), HasSubstr("validation.patience: needs data.validation"));
  EXPECT_THAT(wrong("checkpoint.best=loss"), HasSubstr("checkpoint.best: needs data.validation"));
  EXPECT_THAT(wrong("data.validation=b data.validation_share=0.1"), HasSubstr("there is data.validation already"));
  EXPECT_EQ(wrong("data.train=[a,b] checkpoint.best=loss data.validation_share=0.1"), "no error");
  EXPECT_THAT(wrong("model.name=mlp data.format=npy data.train=[a,b]"), HasSubstr("several files are for csv"));
  EXPECT_THAT(wrong("schedule.name=one_cycle schedule.warmup_steps=3"), HasSubstr("one_cycle has its own rise"));
  EXPECT_THAT(wrong("schedule.name=multi_step schedule.milestones=[5,5]"), HasSubstr("must rise"));
  EXPECT_THAT(wrong("schedule.name=cosine schedule.min_lr=1"), HasSubstr("min_lr: 1 is above optimizer.lr 0.1"));
  EXPECT_THAT(wrong("schedule.name=linear schedule.warmup_steps=9 schedule.total_steps=9"),
              HasSubstr("leaves nothing"));
  for (const char* word : {"true", "false", "no"}) {
    EXPECT_THAT(wrong(std::string("checkpoint.resume=") + word), HasSubstr("is neither auto, none nor a path"));
  }
}

TEST(TrainerConfig, AnEmptyLogFileIsNone) {
  for (const char* given : {"log.file=", "log.file=''"}) {
    auto config = parse_config(kSmall, "f.yaml", {given});
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_EQ(config->log.file, "") << given;
  }
}

TEST(TrainerConfig, SaysWhichKeysDoNothing) {
  auto config =
      parse_config(std::string(kSmall) + "optimizer: {name: adamw, momentum: 0.9}\nschedule: {gamma: 2}\n", "f.yaml",
                   {"model.dropout=0.5", "model.activation=silu", "data.sequence_length=4", "checkpoint.keep=2"});
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_THAT(config->warnings,
              ::testing::ElementsAre("--set model.activation has no effect: it is for mlp, not linear",
                                     "--set model.dropout has no effect: it is for gpt2 and mlp, not linear",
                                     "--set data.sequence_length has no effect: data.format is csv",
                                     "f.yaml:5: optimizer.momentum has no effect: they are for sgd, not adam or adamw",
                                     "f.yaml:6: schedule.gamma has no effect: it is for step and multi_step",
                                     "--set checkpoint.keep has no effect: checkpoint.dir is not set"));
}

TEST(TrainerConfig, StarterConfigurationsLoadWithoutWarnings) {
  for (const StarterConfig& starter : starter_configs()) {
    auto config = parse_config(starter.text, starter.kind, {});
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_THAT(config->warnings, ::testing::IsEmpty()) << starter.kind;
  }
}

TEST(TrainerConfig, EffectiveValuesAreTheFilesOrTheDefaults) {
  auto config = parse_config(kSmall, "f.yaml", {"optimizer.name=adamw", "optimizer.betas=[0.5,0.6]"});
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->effective["model.name"], "linear");
  EXPECT_EQ(config->effective["data.batch_size"], "64");
  EXPECT_EQ(config->effective["optimizer.betas"], "[0.5, 0.6]");
  EXPECT_EQ(config->effective.count("data.validation"), 0U);
  EXPECT_EQ(config->effective.count("model.heads"), 0U) << "nothing to a linear model";
}

TEST(TrainerConfig, TheSamplesInDeployLoad) {
  ::setenv("DATA_DIR", "/data", 1);
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DDPRUN_SOURCE_DIR "/deploy/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    auto config = load_config(entry.path().string(), {});
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_THAT(config->warnings, ::testing::IsEmpty()) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 6);
}

TEST(Metrics, JsonLine) {
  EXPECT_EQ(to_json_line({.step = 3,
                          .epoch = 1,
                          .loss = 0.5,
                          .lr = 0.1,
                          .scale = 64,
                          .skipped = false,
                          .grad_norm = 2,
                          .samples_per_s = 123.44}),
            "{\"step\":3,\"epoch\":1,\"loss\":0.5,\"lr\":0.1,\"scale\":64.0,\"skipped\":false,\"grad_norm\":2.0,"
            "\"samples_per_s\":123.4}\n");
  EXPECT_THAT(to_json_line({.samples_per_s = 0.041239}), HasSubstr("\"samples_per_s\":0.0412"));
  EXPECT_THAT(to_json_line({.loss = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("\"loss\":null"));
}

TEST(Metrics, AFileHasOneWriter) {
  std::string folder = ::testing::TempDir() + "ddprun-metrics-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/m.jsonl";
  {
    auto first = LineFile::open_alone(path, 0);
    ASSERT_TRUE(first) << first.error().message();
    ASSERT_TRUE(first->append("{}\n"));
    auto second = LineFile::open_alone(path, 0);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Errc::invalid_argument);
    EXPECT_THAT(second.error().message(), HasSubstr("m.jsonl: another run writes it"));
    EXPECT_EQ(std::filesystem::file_size(path), 3U) << "what the other has is not cut";
  }
  EXPECT_TRUE(LineFile::open_alone(path, 0));
  EXPECT_TRUE(LineFile::open_alone("/dev/null", -1));
  std::filesystem::remove_all(folder);
}

TEST(Metrics, AreCutBackToAStep) {
  std::string name = ::testing::TempDir() + "ddprun-metrics-XXXXXX";
  const std::string folder = ::mkdtemp(name.data());
  const std::string path = folder + "/sub/m.jsonl";
  {
    auto file = LineFile::open(path, 0);
    ASSERT_TRUE(file) << file.error().message();
    for (int step = 1; step <= 5; ++step) ASSERT_TRUE(file->append(to_json_line({.step = step})));
    ASSERT_TRUE(file->append("{\"step\":6, half"));  // what a killed run leaves
  }
  EXPECT_EQ(*metrics_bytes_up_to(path, 0), 0);
  auto bytes = metrics_bytes_up_to(path, 3);
  ASSERT_TRUE(bytes);
  {
    auto file = LineFile::open(path, *bytes);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->append(to_json_line({.step = 4, .loss = 9})));
  }
  std::ifstream in(path);
  std::string line;
  int lines = 0;
  while (std::getline(in, line)) ++lines;
  EXPECT_EQ(lines, 4);
  EXPECT_EQ(*metrics_bytes_up_to(folder + "/none", 3), 0);
  // The validation of the last step stays only where the checkpoint knows of it.
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  {
    auto file = LineFile::open(path, -1);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->append("{\"step\":4,\"validation\":{\"loss\":1}}\n"));
  }
  EXPECT_EQ(*metrics_bytes_up_to(path, 4, /*validated=*/false), size);
  EXPECT_GT(*metrics_bytes_up_to(path, 4, /*validated=*/true), size);
  std::filesystem::remove_all(folder);
}

TEST(Metrics, AFolderOrASocketCannotBeWritten) {
  EXPECT_TRUE(check_writable("/dev/null"));
  const std::string folder = ::testing::TempDir();
  auto wrong = check_writable(folder);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message(), "cannot write " + folder + ": Is a directory");
}

TEST(OpenData, WhatAReaderLeftOutBecomesAWarning) {
  std::string name = ::testing::TempDir() + "ddprun-left-out-XXXXXX";
  const std::string folder = ::mkdtemp(name.data());
  for (const char* of : {"/cat", "/dog", "/.git"}) {
    std::filesystem::create_directories(folder + of);
    std::ofstream(folder + of + "/1.png") << "x";
  }
  auto config = parse_config(
      "model: {name: resnet18}\ndata: {format: image_folder, train: " + folder + ", validation: " + folder + "}\n",
      "f.yaml", {});
  ASSERT_TRUE(config) << config.error().message();
  auto data = open_data(*config);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(config->model.outputs, 2);
  EXPECT_THAT(config->warnings,
              ::testing::ElementsAre(HasSubstr("data.train: " + folder), HasSubstr("data.validation: " + folder)));
  EXPECT_THAT(config->warnings[0], HasSubstr("left out: .git"));
  std::filesystem::remove_all(folder);
}

TEST(Progress, LossesOfAnySize) {
  EXPECT_EQ(format_loss(0.25), "0.2500");
  EXPECT_EQ(format_loss(1.23456e-5), "1.235e-05");
  EXPECT_EQ(format_loss(0.012345), "0.01235");
  EXPECT_EQ(format_loss(0), "0.0000");
  EXPECT_EQ(format_speed(0.04213), "0.0421");
  EXPECT_EQ(format_speed(12.34), "12.3");
  EXPECT_EQ(format_speed(1234.5), "1234");
  EXPECT_EQ(format_loss(-3.2174613e37), "-3.217e+37");
  EXPECT_EQ(format_loss(-std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(format_loss(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Progress, LinesAndBars) {
  EXPECT_EQ(format_duration(7.4), "0:07");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(3600 * 3 + 245), "3:04:05");
  EXPECT_EQ(format_duration(-1), "?");
  ProgressState s;
  s.epochs = 5;
  s.step = 50;
  s.steps_in_epoch = 100;
  s.loss = 0.25;
  s.lr = 0.1;
  s.samples_per_s = 1234;
  s.eta_s = 65;
  EXPECT_EQ(progress_line(s), "epoch 1/5 step 50/100 loss 0.2500 lr 0.1 1234 samples/s eta 1:05");
  for (const int width : {10, 40, 80, 200}) EXPECT_LE(progress_bar(s, width).size(), static_cast<std::size_t>(width));
  EXPECT_THAT(progress_bar(s, 100), HasSubstr("####"));
  s.tokens_per_s = 99;
  EXPECT_THAT(progress_line(s), HasSubstr("99 tokens/s"));
}

TEST(Advice, NamesSettingsThatAreHardlyMeant) {
  auto config = parse_config(
      "model: {name: resnet18, stem: small}\ndata: {format: cifar, train: a, batch_size: 1}\n"
      "optimizer: {lr: 0}\nschedule: {warmup_steps: 50}\nprecision: {dtype: bf16}\n"
      "ddp: {compression: fp16}\n",
      "f.yaml", {});
  ASSERT_TRUE(config) << config.error().message();
  config->model.image_size = 8;
  RunFacts facts{.steps = 40, .samples_per_rank = 10, .world_size = 2, .crosses_hosts = false, .on_gpu = false};
  EXPECT_THAT(
      advice(*config, facts),
      ::testing::ElementsAre(HasSubstr("optimizer.lr is 0"), HasSubstr("warmup_steps 50 is not below the run's 40"),
                             HasSubstr("precision.dtype bf16 on a CPU"),
                             HasSubstr("data.batch_size: a batch is 1 sample of 1x1 features"),
                             HasSubstr("ddp.compression fp16 has no effect: all ranks are on one host")));
  facts = {.steps = 400, .samples_per_rank = 9, .world_size = 2, .crosses_hosts = true, .on_gpu = true};
  config->update.schedule.lr = 0.1;
  config->data.batch_size = 4;
  EXPECT_THAT(advice(*config, facts), ::testing::ElementsAre(HasSubstr("an epoch's last batch is 1 sample")));
  config->data.drop_short_batch = true;
  EXPECT_THAT(advice(*config, facts), ::testing::IsEmpty());
  facts.world_size = 1;
  EXPECT_THAT(advice(*config, facts), ::testing::ElementsAre(HasSubstr("there is one rank")));
  EXPECT_THAT(memory_advice(), HasSubstr("a smaller data.batch_size"));
}

TEST(ModelCard, Gpt2IsReadBack) {
  engine::ModelConfig model;
  model.name = "gpt2";
  model.gpt2 = {.vocabulary = 256, .context = 64, .sequence_length = 32, .layers = 2, .heads = 4, .embedding = 96};
  auto back = gpt2_from_json(model_config_json(model, {}), "config.json");
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->gpt2.vocabulary, 256);
  EXPECT_EQ(back->gpt2.context, 64);
  EXPECT_EQ(back->gpt2.layers, 2);
  EXPECT_EQ(back->gpt2.embedding, 96);
  const auto wrong = [](const std::string& text) { return gpt2_from_json(text, "c.json").error().message(); };
  EXPECT_THAT(wrong("[]"), HasSubstr("c.json: not a JSON object"));
  EXPECT_THAT(wrong("{\"model_type\": \"llama\"}"), HasSubstr("model_type is 'llama'"));
  EXPECT_THAT(wrong("{\"model_type\": \"gpt2\", \"vocab_size\": \"x\"}"), HasSubstr("'vocab_size' is missing or no"));
}

TEST(ModelCard, OtherModelsBringTheirSizesAndClasses) {
  engine::ModelConfig model;
  model.name = "resnet18";
  model.outputs = 2;
  model.image_size = 32;
  data::SampleSpec spec;
  spec.class_names = {"cat", "dog"};
  const std::string text = model_config_json(model, spec);
  engine::ModelConfig back;
  back.name = "resnet18";
  auto names = complete_from_json(text, "c.json", back);
  ASSERT_TRUE(names) << names.error().message();
  EXPECT_EQ(*names, spec.class_names);
  EXPECT_EQ(back.image_size, 32);
  EXPECT_EQ(back.outputs, 2);
  back.name = "mlp";
  EXPECT_THAT(complete_from_json(text, "c.json", back).error().message(),
              HasSubstr("the weights are of model resnet18, the configuration says mlp"));
}

TEST(Confusion, CsvAndPicture) {
  const ConfusionMatrix matrix{class_names_of({"a,b", "c"}, 3), {1, 2, 0, 3, 4, 0, 0, 0, 5}};
  EXPECT_EQ(confusion_csv(matrix), "target,\"a,b\",c,2\n\"a,b\",1,2,0\nc,3,4,0\n2,0,0,5\n");
  EXPECT_THAT(confusion_svg(matrix), ::testing::AllOf(HasSubstr("<svg"), HasSubstr(">5</text>"), HasSubstr("a,b")));
}

TEST(Figures, FollowTheKindOfTarget) {
  EvalCounts counts{.loss_sum = 2, .targets = 4, .correct = 1, .in_top5 = 3, .samples = 4};
  const auto names = [&counts](std::int64_t classes, std::vector<std::int64_t> target_shape) {
    data::SampleSpec spec;
    spec.classes = classes;
    spec.target_shape = std::move(target_shape);
    std::string text;
    for (const Figure& figure : figures_of(counts, spec)) text += fmt::format("{}={:.4f} ", figure.name, figure.value);
    return text;
  };
  EXPECT_EQ(names(0, {1}), "loss=0.5000 ");
  EXPECT_EQ(names(3, {}), "loss=0.5000 accuracy=0.2500 ");
  EXPECT_EQ(names(10, {}), "loss=0.5000 accuracy=0.2500 top5=0.7500 ");
  EXPECT_EQ(names(256, {16}), "loss=0.5000 perplexity=1.6487 ");
}

TEST(Sampling, FollowsItsSettings) {
  const std::vector<float> logits = {0, 3, 2, 3};
  engine::Generator random(1);
  EXPECT_EQ(choose_token(logits, {}, random), 1) << "the first of equals";
  std::map<std::int64_t, int> seen;
  for (int i = 0; i < 2000; ++i) ++seen[choose_token(logits, {.temperature = 1, .top_k = 2}, random)];
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_NEAR(seen[1], 1000, 150);
  seen.clear();
  for (int i = 0; i < 2000; ++i) ++seen[choose_token(logits, {.temperature = 1, .top_p = 0.85}, random)];
  EXPECT_EQ(seen.size(), 3U) << "0.42 + 0.42 are not enough";
  EXPECT_EQ(seen.count(0), 0U);
  engine::Generator a(7), b(7);
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(choose_token(logits, {.temperature = 2}, a), choose_token(logits, {.temperature = 2}, b));
}

TEST(LeakCheck, NamesWhatGrewTwice) {
  const ResourceUse start{.rss_bytes = 100'000'000, .arena_bytes = 5, .descriptors = 10, .threads = 3};
  GrowthWatch watch;
  EXPECT_EQ(watch.next(start), "");
  ResourceUse now = start;
  now.rss_bytes += 5'000'000;  // an allocator's own coming and going
  EXPECT_EQ(watch.next(now), "");
  now.rss_bytes += 50'000'000;
  now.descriptors = 12;
  now.arena_bytes = 1'000'005;
  EXPECT_EQ(watch.next(now), "") << "once is no leak";
  now.rss_bytes += 50'000'000;
  now.descriptors = 13;
  now.arena_bytes = 2'000'005;
  now.threads = 4;
  EXPECT_EQ(watch.next(now), "arena +2.0 MB, resident memory +100.0 MB, descriptors +3");
  now.threads = 5;
  EXPECT_EQ(watch.next(now), "threads +2");
  EXPECT_EQ(watch.next(now), "");
}

TEST(LeakCheck, NamesWorkHandlesAtOnce) {
  GrowthWatch watch;
  EXPECT_EQ(watch.next({.threads = 3}), "");
  const ResourceUse now{.descriptors = 10, .threads = 3, .works = 3, .dropped = 1};
  EXPECT_EQ(watch.next(now), "live Work handles +3, Work handles dropped without wait +1");
  EXPECT_THAT(describe(now), HasSubstr("10 descriptors, 3 threads, 3 live Work handles, 1 dropped without wait"));
}

TEST(LeakCheck, MeasuresThisProcess) {
  auto use = measure_resources();
  ASSERT_TRUE(use);
  EXPECT_GT(use->rss_bytes, 1'000'000);
  EXPECT_GE(use->descriptors, 3);
  EXPECT_GE(use->threads, 1);
  const int fd = ::dup(0);
  auto more = measure_resources();
  ::close(fd);
  ASSERT_TRUE(more);
  EXPECT_EQ(more->descriptors, use->descriptors + 1);
}

// A killed run and a display beside a running one both see each point: nothing waits in memory.
TEST(TensorBoard, APointIsInTheFileAtOnce) {
  std::string folder = ::testing::TempDir() + "ddprun-tensorboard-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  auto writer = TensorBoardWriter::open(folder, 0);
  ASSERT_TRUE(writer) << writer.error().message();
  const std::string path = std::filesystem::directory_iterator(folder)->path().string();
  const auto before = std::filesystem::file_size(path);
  writer->scalar("a", 1, 0.5);
  EXPECT_EQ(std::filesystem::file_size(path), before + tfrecord(scalar_event(1.0, 1, "a", 0.5)).size());
  std::filesystem::remove_all(folder);
}

TEST(TensorBoard, RecordOfAKnownEvent) {
  // Bytes of tensorboard 2.20's own writer for Event(wall_time=1.0, step=2, summary=[tag "a", simple_value 0.5]).
  const std::string event = scalar_event(1.0, 2, "a", 0.5);
  EXPECT_EQ(
      event,
      std::string("\x09\x00\x00\x00\x00\x00\x00\xf0\x3f\x10\x02\x2a\x0a\x0a\x08\x0a\x01\x61\x15\x00\x00\x00\x3f", 23));
  const std::string record = tfrecord(event);
  EXPECT_EQ(record.size(), event.size() + 16);
}

}  // namespace
}  // namespace ddprun::trainer
