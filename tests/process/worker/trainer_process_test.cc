#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/process/worker/trainer_support.h"

namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class Trainer : public ::testing::Test, public TrainerRunner {
 protected:
  // Plain gradient descent on the mean over `global_batch` rows, in double.
  std::vector<double> right_answer(int global_batch, int epochs, double lr) const {
    std::vector<std::vector<double>> rows;
    std::istringstream in(read("data.csv"));
    for (std::string line; std::getline(in, line);) {
      std::vector<double> row;
      std::istringstream cells(line);
      for (std::string cell; std::getline(cells, cell, ',');) row.push_back(std::stod(cell));
      rows.push_back(row);
    }
    const std::size_t k = rows[0].size() - 1;
    std::vector<double> w(k + 1, 0);  // bias last
    for (int epoch = 0; epoch < epochs; ++epoch) {
      for (std::size_t i = 0; i < rows.size(); i += static_cast<std::size_t>(global_batch)) {
        const std::size_t end = std::min(rows.size(), i + static_cast<std::size_t>(global_batch));
        std::vector<double> g(k + 1, 0);
        for (std::size_t r = i; r < end; ++r) {
          double error = w[k] - rows[r][k];
          for (std::size_t f = 0; f < k; ++f) error += w[f] * rows[r][f];
          for (std::size_t f = 0; f < k; ++f) g[f] += 2 * error * rows[r][f];
          g[k] += 2 * error;
        }
        for (std::size_t f = 0; f <= k; ++f) w[f] -= lr * g[f] / static_cast<double>(end - i);
      }
    }
    return w;
  }
  void expect_params(const std::string& name, const std::vector<double>& right, double tolerance) const {
    const Json params = json(name);
    ASSERT_TRUE(params.contains("weight")) << read(name);
    for (std::size_t f = 0; f + 1 < right.size(); ++f) {
      EXPECT_NEAR(params["weight"][f].get<double>(), right[f], tolerance);
    }
    EXPECT_NEAR(params["bias"].get<double>(), right.back(), tolerance);
  }
};

// srun or mpirun without a launcher: N trainings that overwrite each other's files.
TEST_F(Trainer, SeveralCopiesWithoutALauncherAreRefused) {
  write_csv("data.csv", 8, 2);
  runner().environment["SLURM_PROCID"] = "1";
  runner().environment["SLURM_STEP_NUM_TASKS"] = "2";
  const auto refused = run(0);
  EXPECT_EQ(refused.code, 2) << said(refused);
  EXPECT_THAT(refused.err, HasSubstr("one of 2 copies that srun started (SLURM_PROCID=1)"));
  EXPECT_THAT(refused.err, HasSubstr("ddprun --nproc-per-node=2 trainer"));
  EXPECT_EQ(own_lines(refused), 1) << refused.err;
  auto alone = command(0);
  alone.push_back("--single");
  expect_ok(runner().run(alone));
  expect_ok(run(2));  // the launcher's workers have a RANK, and Slurm's variables too
}

TEST_F(Trainer, AnyWayToTheSameGlobalBatchGivesTheSameAnswer) {
  write_csv("data.csv", 64, 3);
  const std::vector<double> right = right_answer(16, 2, 0.05);
  set("output.params", path("p.json"));
  const int ways[][3] = {{0, 16, 1}, {1, 4, 4}, {2, 8, 1}, {2, 2, 4}, {4, 1, 4}};
  for (const auto& [ranks, batch, accumulate] : ways) {
    set("data.batch_size", std::to_string(batch));
    set("train.accumulate", std::to_string(accumulate));
    expect_ok(run(ranks));
    expect_params("p.json", right, 1e-4);
    EXPECT_EQ(json("p.json")["step"], 8);
  }
}

// The last step of an epoch has fewer samples, in its last micro-batch or altogether: the mean is still over samples.
TEST_F(Trainer, ShortLastStepIsAMeanOverItsSamples) {
  write_csv("data.csv", 22, 3);
  set("output.params", path("p.json"));
  set("data.batch_size", "3");
  set("train.accumulate", "2");
  set("data.num_workers", "0");
  expect_ok(run(2));
  expect_params("p.json", right_answer(12, 2, 0.05), 1e-4);
}

// Every sample of the validation set counts once, on any number of ranks.
TEST_F(Trainer, ValidationCountsAreExactOnAnyNumberOfRanks) {
  std::string rows;
  for (int i = 0; i < 37; ++i) rows += fmt::format("{},{},{}\n", i % 5 - 2, (i * 7) % 11 - 5, (i * 7) % 11 > 5 ? 1 : 0);
  runner().write("data.csv", rows);
  set("data.validation", path("data.csv"));
  set("model.outputs", "2");
  set("loss.name", "cross_entropy");
  set("train.epochs", "1");
  set("train.max_steps", "1");
  set("data.batch_size", "64");
  set("output.metrics", path("m.jsonl"));
  std::string first;
  for (const int ranks : {0, 2, 3, 5}) {
    // One step on the whole set, so that all have the same parameters: 37 rows do not divide, the fill differs a
    // little.
    set("optimizer.lr", "0");
    const Finished one = run(ranks);
    ASSERT_EQ(one.code, 0) << said(one);
    const std::size_t at = one.out.rfind("validation accuracy");
    ASSERT_NE(at, std::string::npos) << said(one);
    const std::string line = one.out.substr(at, one.out.find('\n', at) - at);
    if (first.empty()) first = line;
    EXPECT_EQ(line, first) << ranks << " ranks";
  }
  // All-zero outputs choose class 0: 20 of 37 rows have it.
  int zeros = 0;
  for (int i = 0; i < 37; ++i) zeros += (i * 7) % 11 > 5 ? 0 : 1;
  EXPECT_EQ(first, fmt::format("validation accuracy {:.2f} %", 100.0 * zeros / 37));
}

TEST_F(Trainer, ANanLossNamesStepAndRankAndEndsAll) {
  write_csv("data.csv", 40, 2);
  set("optimizer.lr", "1e30");
  set("optimizer.momentum", "0.9");
  const Finished stopped = run(2);
  EXPECT_EQ(stopped.code, 78) << said(stopped);
  EXPECT_THAT(stopped.err, ::testing::ContainsRegex("trainer: rank [01]: step [0-9]+: the (loss|gradient)"));
  EXPECT_EQ(own_lines(stopped), 1) << said(stopped);
}

TEST_F(Trainer, ANanLossMayBeSkipped) {
  write_csv("data.csv", 16, 2);
  std::ofstream(path("data.csv"), std::ios::app) << "3e38,3e38,3e38\n";  // overflows f32 in the loss
  set("data.batch_size", "4");
  set("train.epochs", "1");
  set("train.on_nan", "skip");
  set("output.metrics", path("m.jsonl"));
  set("output.params", path("p.json"));
  expect_ok(run(1));
  const auto lines = metrics("m.jsonl");
  ASSERT_EQ(lines.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(lines[i]["skipped"], i == 4);
  EXPECT_TRUE(std::isfinite(json("p.json")["bias"].get<double>()));
}

// All steps skipped: no loss to speak of, and no success.
TEST_F(Trainer, ARunThatTrainedNothingIsAnError) {
  runner().write("data.csv", "3e38,3e38,3e38,3e38,3\n3e38,3e38,3e38,3e38,3\n");
  set("model.name", "mlp");
  set("model.hidden", "[512]");
  unset("model.init");
  set("data.batch_size", "1");
  set("data.validation", path("data.csv"));
  set("train.on_nan", "skip");
  const Finished none = run(2);
  EXPECT_EQ(none.code, 78) << said(none);
  EXPECT_THAT(none.out, HasSubstr("epoch 2/2 done: mean loss nan, no step taken"));
  EXPECT_THAT(none.err, HasSubstr("nothing was trained: all 2 steps were skipped"));
  EXPECT_THAT(none.err, HasSubstr("the validation loss is "));
  EXPECT_EQ(own_lines(none), 1) << said(none);
}

TEST_F(Trainer, LossScaleHalvesOnOverflow) {
  std::string rows;
  for (int i = 0; i < 32; ++i) rows += "1,2,50\n";
  runner().write("data.csv", rows);
  set("data.batch_size", "2");
  set("train.epochs", "1");
  set("precision.loss_scaling", "true");
  set("precision.init_scale", "1e38");
  set("precision.growth_interval", "4");
  set("output.metrics", path("m.jsonl"));
  expect_ok(run(2));
  const auto lines = metrics("m.jsonl");
  EXPECT_EQ(lines[0]["skipped"], true);
  EXPECT_EQ(lines[1]["scale"].get<double>(), static_cast<double>(1e38F / 2));
  int skipped = 0;
  for (const Json& line : lines) skipped += line["skipped"].get<bool>() ? 1 : 0;
  EXPECT_LT(skipped, 8);  // 8 steps: some were made
}

TEST_F(Trainer, AMemoryLimitEndsTheRunWithBothNumbers) {
  write_csv("data.csv", 40, 2);
  set("train.memory_limit_mb", "1");
  const Finished stopped = run(2);
  EXPECT_NE(stopped.code, 0);
  EXPECT_THAT(stopped.err, HasSubstr("train.memory_limit_mb 1"));
}

TEST_F(Trainer, ConfigurationErrorsAreOneLineWithFileAndLine) {
  write_csv("data.csv", 8, 2);
  set("optimizer.learning_rat", "3");
  const Finished wrong = run(2);
  EXPECT_EQ(wrong.code, 2) << said(wrong);
  EXPECT_THAT(wrong.err, ::testing::ContainsRegex("trainer: .*config.yaml:[0-9]+: .*learning_rat"));
  EXPECT_EQ(own_lines(wrong), 1) << said(wrong);
}

// Of everything but training the output is the result.
TEST_F(Trainer, OutputThatIsLostIsAnError) {
  write_csv("data.csv", 8, 2);
  const std::string config = write_config();
  for (const std::string& arguments :
       {std::string("--help"), std::string("--version"), "--check --config " + config,
        std::string("bench all-reduce --count 16 --rounds 1 --warm-up 0"), std::string("plot --help")}) {
    const Finished lost = runner().run({"/bin/sh", "-c", DDPRUN_BINARY_DIR "/trainer " + arguments + " > /dev/full"});
    EXPECT_EQ(lost.code, 1) << arguments << "\n" << said(lost);
    EXPECT_THAT(lost.err, HasSubstr("trainer: cannot write all of the output: ")) << arguments;
  }
}

// 22 rows on 2 ranks are 11 each: two whole batches of 4 and a short one, which DataLoader(drop_last=True) drops.
TEST_F(Trainer, DropShortBatchGivesWholeBatchesOnly) {
  write_csv("data.csv", 22, 2);
  set("data.drop_short_batch", "true");
  set("output.metrics", path("m.jsonl"));
  set("output.indices", path("i"));
  expect_ok(run(2));
  EXPECT_EQ(lines_of("m.jsonl"), 4);
  EXPECT_EQ(lines_of("i/rank-0.txt"), 16);
}

TEST_F(Trainer, DataErrorsEndAllRanksWithOneLine) {
  write_csv("data.csv", 8, 2);
  struct Case {
    std::map<std::string, std::string> values;
    const char* words;
  };
  std::ofstream(path("labels.csv")) << "1,2,0\n1,2,5\n";
  const std::vector<Case> cases = {
      {{{"data.train", path("none.csv")}}, "none.csv"},
      {{{"data.train", path("labels.csv")}, {"loss.name", "cross_entropy"}, {"model.outputs", "3"}},
       "labels.csv:2: label 5 is not a class number from 0 to 2"},
      {{{"data.drop_last", "true"}, {"data.train", path("labels.csv")}}, "leave nothing for each of 3 ranks"},
      {{{"model.outputs", "4"}}, "model.outputs is 4"},
      {{{"data.drop_short_batch", "true"}, {"data.batch_size", "4"}},
       "8 training samples on 3 ranks make no full batch of 4"},
      {{{"checkpoint.resume", path("nowhere")}}, "nowhere"},
  };
  for (const Case& c : cases) {
    TrainerRunner fresh;
    for (const auto& [key, value] : c.values) fresh.set(key, value);
    if (!c.values.contains("data.train")) fresh.set("data.train", path("data.csv"));
    const Finished wrong = fresh.run(3);
    EXPECT_EQ(wrong.code, 78) << c.words << "\n" << said(wrong);
    EXPECT_THAT(wrong.err, HasSubstr(c.words));
    EXPECT_EQ(own_lines(wrong), 1) << said(wrong);
  }
}

// Found only when the sample is read, in the middle of a step: all ranks end together, one names the picture.
TEST_F(Trainer, ABrokenPictureEndsAllRanksWithItsPath) {
  fs::create_directories(path("images/a"));
  for (const char* name : {"1.png", "2.jpg", "3.png"}) runner().write(std::string("images/a/") + name, "no picture");
  set("model.name", "resnet18");
  set("model.stem", "small");
  set("model.width", "4");
  unset("model.init");
  set("data.format", "image_folder");
  set("data.train", path("images"));
  set("data.image_size", "32");
  set("data.batch_size", "1");
  set("loss.name", "cross_entropy");
  for (const char* sync : {"eval", "step"}) {
    set("ddp.sync_buffers", sync);
    const Finished wrong = run(3);
    EXPECT_EQ(wrong.code, 78) << said(wrong);
    EXPECT_THAT(wrong.err, HasSubstr("images/a/1.png: neither JPEG nor PNG"));
    EXPECT_EQ(own_lines(wrong), 1) << said(wrong);
  }
}

// On a terminal: a bar that is wiped before each line, and the lines in the log file all the same.
TEST_F(Trainer, ATerminalShowsABarAndTheLogFileTheLines) {
  write_csv("data.csv", 40, 2);
  set("log.every_steps", "5");
  write_config();
  const Finished shown =
      runner().run({"/usr/bin/script", "-qec",
                    "stty cols 80; exec " + std::string(DDPRUN_BINARY_DIR) + "/trainer --config " + path("config.yaml"),
                    "/dev/null"});
  EXPECT_EQ(shown.code, 0) << said(shown);
  EXPECT_THAT(shown.out, HasSubstr("\r\x1b[Kepoch 1/2 ["));
  EXPECT_THAT(shown.out, HasSubstr("\r\x1b[Kepoch 1/2 done: mean loss"));
  EXPECT_THAT(shown.out, Not(HasSubstr("step 5/10")));
  EXPECT_THAT(read("train.log"), HasSubstr("Z epoch 1/2 step 5/10 loss"));
}

TEST_F(Trainer, PlotAndTokenize) {
  write_csv("data.csv", 40, 2);
  set("output.metrics", path("m.jsonl"));
  expect_ok(run(1));
  const Finished plotted = runner().run({"trainer", "plot", path("m.jsonl"), "-o", path("run.svg")});
  expect_ok(plotted);
  EXPECT_THAT(read("run.svg"), HasSubstr("<polyline class='mean'"));
  EXPECT_EQ(runner().run({"trainer", "plot", path("none.jsonl")}).code, 1);
  runner().write("a.txt", "hello world");
  expect_ok(runner().run({"trainer", "tokenize", "-o", path("t"), "--validation-share", "0.2", path("a.txt")}));
  EXPECT_EQ(read("t.bin").size(), 1024U + 2 * 9);
  EXPECT_EQ(read("t-validation.bin").size(), 1024U + 2 * 2);
  EXPECT_EQ(runner().run({"trainer", "tokenize", path("a.txt")}).code, 2);
  runner().write("empty.txt", "");
  EXPECT_THAT(runner().run({"trainer", "tokenize", "-o", path("e"), path("empty.txt")}).err,
              HasSubstr("no text in it"));
  const Finished typo = runner().run({"trainer", "tokenise"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.err, HasSubstr("unknown command 'tokenise': did you mean 'tokenize'?"));
}

// Configurations that a CPU can run, for a few steps each.
TEST_F(Trainer, SampleConfigurationsTrain) {
  const std::string configs = DDPRUN_SOURCE_DIR "/deploy/configs/";
  const bool images = fs::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz");
  std::vector<std::vector<std::string>> runs = {{configs + "exp001.yaml", "train.max_steps=3"}};
  if (images) runs.push_back({configs + "fashion_mnist_mlp.yaml", "train.max_steps=3"});
  if (images) {
    runs.push_back({configs + "fashion_mnist_resnet18.yaml", "train.max_steps=1", "data.batch_size=4",
                    "data.validation.inputs=" + path("few-images"), "data.validation.targets=" + path("few-labels")});
    runner().write("few-images",
                   std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\0\x1c", 16) + std::string(2 * 784, 'x'));
    runner().write("few-labels", std::string("\0\0\x08\x01\0\0\0\x02\x01\x02", 10));
  }
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "In the beginning was the word. ";
  runner().write("kjv.txt", text);
  expect_ok(runner().run({"trainer", "tokenize", "--validation-share", "0.05", "-o", path("kjv"), path("kjv.txt")}));
  runs.push_back({configs + "gpt2_bible.yaml", "data.train=" + path("kjv.bin"),
                  "data.validation=" + path("kjv-validation.bin"), "train.max_steps=2", "data.batch_size=1",
                  "model.layers=2"});
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::string> argv = {"ddprun", "--standalone", "--nproc-per-node=2", "trainer", "--config", runs[i][0]};
    const std::string own = path("run" + std::to_string(i));
    for (std::size_t k = 1; k < runs[i].size(); ++k) argv.insert(argv.end(), {"--set", runs[i][k]});
    argv.insert(argv.end(), {"--set", "checkpoint.dir=" + own + "/ck", "--set", "log.file=" + own + "/l", "--set",
                             "output.metrics=" + own + "/m", "--set", "output.tensorboard=" + own + "/tb"});
    const Finished done = runner().run(argv);
    EXPECT_EQ(done.code, 0) << runs[i][0] << "\n" << said(done);
    EXPECT_TRUE(fs::exists(own + "/ck/latest/model.safetensors")) << runs[i][0];
  }
}

}  // namespace
}  // namespace ddprun::testing
