#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/process/worker/trainer_support.h"

namespace ddprun::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

// What one does with a model when it is trained.
class TrainerApply : public ::testing::Test, public TrainerRunner {
 protected:
  Finished command_of(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "trainer");
    return runner().run(arguments);
  }
  static std::vector<std::string> lines(const std::string& text) {
    std::vector<std::string> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
};

TEST_F(TrainerApply, EvalGivesTheTrainingsOwnFigures) {
  write_csv("data.csv", 32, 2);
  write_csv("val.csv", 11, 2);
  set("data.validation", path("val.csv"));
  set("checkpoint.dir", path("ck"));
  set("output.metrics", path("m.jsonl"));
  expect_ok(run(2));
  const Finished measured = command_of({"eval", "--config", path("config.yaml"), "--weights", path("ck")});
  ASSERT_EQ(measured.code, 0) << said(measured);
  const double loss = metrics("m.jsonl").back()["validation"]["loss"];
  EXPECT_THAT(measured.out, AllOf(HasSubstr(fmt::format("loss       {:.6g}", loss)), HasSubstr("samples    11")));
  const Finished other = command_of({"eval", "--config", path("config.yaml"), "--weights",
                                     path("ck/latest/model.safetensors"), "--data", path("data.csv")});
  EXPECT_THAT(other.out, HasSubstr("samples    32")) << said(other);
  for (const auto& [weights, what] : {std::pair{path("none"), "is not there"}, std::pair{path(""), "no checkpoint"}}) {
    const Finished wrong = command_of({"eval", "--config", path("config.yaml"), "--weights", weights});
    EXPECT_EQ(wrong.code, 1);
    EXPECT_THAT(wrong.err, AllOf(StartsWith("trainer eval: --weights: "), HasSubstr(what)));
  }
  EXPECT_EQ(command_of({"eval"}).code, 2);
}

TEST_F(TrainerApply, PredictNeedsNoTrainingData) {
  std::string text = "x,kind\n";
  for (int i = 0; i < 60; ++i) text += fmt::format("{},{}\n", (i % 2) * 2 - 1, i % 2 == 0 ? "cat" : "dog");
  runner().write("data.csv", text);
  set("loss.name", "cross_entropy");
  set("optimizer.lr", "0.5");
  set("checkpoint.dir", path("ck"));
  expect_ok(run(1));
  fs::remove(path("data.csv"));
  runner().write("new.csv", "x\n-1\n2\n");  // without the target
  const Finished answers =
      command_of({"predict", "--config", path("config.yaml"), "--weights", path("ck"), path("new.csv")});
  ASSERT_EQ(answers.code, 0) << said(answers);
  const auto rows = lines(answers.out);
  ASSERT_EQ(rows.size(), 3U) << answers.out;
  EXPECT_EQ(rows[0], "sample,class,probability");
  EXPECT_THAT(rows[1], StartsWith(path("new.csv") + ":2,cat,0."));
  EXPECT_THAT(rows[2], StartsWith(path("new.csv") + ":3,dog,0."));
  runner().write("labelled.csv", "x,kind\n-1,cat\n");  // with it
  const Finished all = command_of({"predict", "--config", path("config.yaml"), "--weights", path("ck"), "--all", "-o",
                                   path("out.csv"), path("labelled.csv")});
  ASSERT_EQ(all.code, 0) << said(all);
  EXPECT_THAT(read("out.csv"), StartsWith("sample,cat,dog\n"));
  runner().write("wide.csv", "1,2,3\n");
  const Finished wrong =
      command_of({"predict", "--config", path("config.yaml"), "--weights", path("ck"), path("wide.csv")});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("wide.csv:1: 3 columns, the model takes 1 inputs"));
}

TEST_F(TrainerApply, GenerateSpeaksAsTheModelLearnt) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += "abcde";  // in every phase at a sample's start
  const std::string file = runner().write("t.txt", text);
  expect_ok(command_of({"tokenize", "-o", path("t"), file}));
  for (const char* key : {"model.init", "data.train", "loss.name", "optimizer.lr"}) unset(key);
  set("model.name", "gpt2");
  set("model.vocabulary", "256");
  set("model.context", "16");
  set("model.layers", "1");
  set("model.heads", "2");
  set("model.embedding", "32");
  set("data.format", "tokens");
  set("data.train", path("t.bin"));
  set("data.sequence_length", "16");
  set("data.batch_size", "8");
  set("loss.name", "cross_entropy");
  set("optimizer.name", "adamw");
  set("optimizer.lr", "0.01");
  set("train.epochs", "6");
  set("checkpoint.dir", path("ck"));
  expect_ok(run(1));
  EXPECT_EQ(json("ck/latest/config.json")["architectures"][0], "GPT2LMHeadModel");
  const Finished spoken = command_of({"generate", "--weights", path("ck"), "--prompt", "abcdeab", "--tokens", "40"});
  ASSERT_EQ(spoken.code, 0) << said(spoken);
  std::string right;
  while (right.size() < 47) right += "abcde";
  EXPECT_EQ(spoken.out, right.substr(0, 47) + "\n") << "also beyond the context of 16";
  const Finished ids =
      command_of({"generate", "--weights", path("ck"), "--prompt-ids", "97,98,99,100", "--tokens", "3"});
  EXPECT_EQ(ids.out, "101,97,98\n") << said(ids);
  std::vector<std::string> random = {"generate",      "--weights", path("ck"), "--prompt", "a",
                                     "--temperature", "3",         "--seed",   "5"};
  const Finished first = command_of(random), second = command_of(random);
  EXPECT_EQ(first.out, second.out);
  random.back() = "6";
  EXPECT_NE(first.out, command_of(random).out);
  const Finished none = command_of({"generate", "--weights", path("ck")});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("needs one of --prompt"));
}

}  // namespace
}  // namespace ddprun::testing
