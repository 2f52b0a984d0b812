#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/process/worker/trainer_support.h"

namespace ddprun::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

// What is done with data.validation beside printing it.
class TrainerValidation : public ::testing::Test, public TrainerRunner {
 protected:
  TrainerValidation() {
    write_csv("data.csv", 24, 2);
    write_csv("val.csv", 9, 2);
    set("data.validation", path("val.csv"));
    set("output.metrics", path("m.jsonl"));
  }

  // Steps of the lines with a validation.
  std::vector<int> validated() const {
    std::vector<int> steps;
    for (const Json& line : metrics("m.jsonl")) {
      if (line.contains("validation")) steps.push_back(line["step"]);
    }
    return steps;
  }
  double validation_loss(int step) const {
    for (const Json& line : metrics("m.jsonl")) {
      if (line.contains("validation") && line["step"] == step) return line["validation"]["loss"];
    }
    return -1;
  }
  // Three classes on a line: learnable.
  void write_classes(const std::string& name, int rows) {
    std::string text = "x,kind\n";
    const char* const names[] = {"ant", "bee", "cow"};
    for (int i = 0; i < rows; ++i) text += fmt::format("{},{}\n", (i % 3 - 1) * 2 + 0.1 * (i % 5), names[i % 3]);
    runner().write(name, text);
  }
};

TEST_F(TrainerValidation, IsAfterEachEpochUnlessStepsAreGiven) {
  const Finished epochs = run(2);
  expect_ok(epochs);
  EXPECT_EQ(validated(), (std::vector<int>{3, 6}));
  EXPECT_THAT(epochs.out, HasSubstr("epoch 1/2 done: mean loss"));
  EXPECT_EQ(metrics("m.jsonl").front()["epoch"], 1) << "epochs are counted as in the log";
  set("validation.every_steps", "2");
  set("validation.at_start", "true");
  set("output.tensorboard", path("tb"));
  set("train.max_steps", "5");
  const Finished steps = run(2);
  expect_ok(steps);
  EXPECT_EQ(validated(), (std::vector<int>{0, 2, 4, 5}));
  EXPECT_GT(validation_loss(0), validation_loss(4));
  EXPECT_THAT(steps.out,
              AllOf(HasSubstr("before the first step: validation loss"), HasSubstr("step 4: validation loss")));
  EXPECT_TRUE(metrics("m.jsonl")[1].contains("grad_norm"));
  const Finished plotted = runner().run({"trainer", "plot", path("m.jsonl"), "-o", path("run.svg")});
  EXPECT_EQ(plotted.code, 0) << said(plotted);
  EXPECT_THAT(read("run.svg"), AllOf(HasSubstr("validation loss"), HasSubstr("grad_norm")));
}

TEST_F(TrainerValidation, ARunThatGoesOnHasEachResultOnce) {
  set("validation.every_steps", "2");
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "1");
  expect_ok(run(2));
  const std::string whole = curve("m.jsonl");
  fs::remove_all(path("ck"));
  fs::remove(path("m.jsonl"));
  for (const char* steps : {"2", "4", "1000"}) {
    set("train.max_steps", steps);
    expect_ok(run(2));
  }
  EXPECT_EQ(curve("m.jsonl"), whole);
}

TEST_F(TrainerValidation, TheBestCheckpointIsKept) {
  set("checkpoint.dir", path("ck"));
  set("checkpoint.best", "loss");
  set("checkpoint.keep", "1");
  set("checkpoint.every_steps", "1");
  set("validation.every_steps", "1");
  set("train.max_steps", "4");
  expect_ok(run(2));
  const std::string best = fs::read_symlink(path("ck/best")).filename();
  // Now worse and worse: the rate is far too large, and the best one stays.
  set("optimizer.lr", "20");
  set("train.max_steps", "0");
  set("train.epochs", "3");
  const Finished worse = run(2);
  expect_ok(worse);
  EXPECT_THAT(worse.out, HasSubstr("changed since that checkpoint: optimizer.lr: 0.05 -> 20"));
  ASSERT_GT(validation_loss(9), validation_loss(4));
  EXPECT_EQ(fs::read_symlink(path("ck/best")).filename(), best);
  EXPECT_TRUE(fs::exists(path("ck/best/model.safetensors")));
  EXPECT_THAT(worse.out, HasSubstr("best loss: step 4, validation loss"));
  const Finished measured =
      runner().run({"trainer", "eval", "--config", path("config.yaml"), "--weights", path("ck"), "--json"});
  EXPECT_EQ(measured.code, 0) << said(measured);
  EXPECT_NEAR(Json::parse(measured.out)["loss"].get<double>(), validation_loss(4), 1e-6) << "of the best one";
}

TEST_F(TrainerValidation, FiguresThatTheDataDoNotHaveAreRefused) {
  set("checkpoint.dir", path("ck"));
  set("checkpoint.best", "accuracy");
  const Finished best = run(2);
  EXPECT_EQ(best.code, 78) << said(best);
  EXPECT_THAT(best.err, HasSubstr("checkpoint.best: accuracy is not among the figures of these data: loss"));
  EXPECT_EQ(own_lines(best), 1) << best.err;
  unset("checkpoint.best");
  set("validation.confusion", path("cm"));
  EXPECT_THAT(run(1).err, HasSubstr("validation.confusion: these data have no class for each sample"));
}

TEST_F(TrainerValidation, AnAverageOfTheParametersIsWhatIsValidated) {
  set("optimizer.ema", "0.9");
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "2");
  expect_ok(run(2));
  const double averaged = validation_loss(6);
  const auto loss_of = [&](const std::string& weights) {
    const Finished measured =
        runner().run({"trainer", "eval", "--config", path("config.yaml"), "--weights", weights, "--json"});
    return measured.code == 0 ? Json::parse(measured.out)["loss"].get<double>() : -1;
  };
  EXPECT_NEAR(loss_of(path("ck")), averaged, 1e-6);
  EXPECT_GT(averaged, loss_of(path("ck/latest/model.safetensors")) + 1e-3) << "it is behind";
  // ... and goes on where it was.
  const std::string whole = curve("m.jsonl");
  fs::remove_all(path("ck"));
  for (const char* epochs : {"1", "2"}) {
    set("train.epochs", epochs);
    expect_ok(run(2));
  }
  EXPECT_EQ(curve("m.jsonl"), whole);
}

TEST_F(TrainerValidation, ARunWithoutGainEndsEarlyAndStaysEnded) {
  set("optimizer.lr", "0");
  set("validation.every_steps", "1");
  set("validation.patience", "3");
  set("checkpoint.dir", path("ck"));
  const Finished ended = run(2);
  expect_ok(ended);
  EXPECT_EQ(validated(), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_THAT(ended.out, HasSubstr("ended early: 3 validations brought no gain"));
  EXPECT_THAT(ended.err, HasSubstr("optimizer.lr is 0: nothing will be learnt"));
  const Finished again = run(1);
  expect_ok(again);
  EXPECT_THAT(again.out, HasSubstr("3 validations without a gain have ended it (validation.patience) (step 4"));
  EXPECT_EQ(validated().back(), 4);
}

TEST_F(TrainerValidation, AFinishedRunThatIsStartedAgainSaysSo) {
  set("checkpoint.dir", path("ck"));
  expect_ok(run(1));
  const Finished again = run(1);
  expect_ok(again);
  EXPECT_THAT(again.out, AllOf(HasSubstr("all 2 epochs were done already (step 12"), HasSubstr("raise train.epochs"),
                               Not(HasSubstr("changed since"))));
  set("train.epochs", "3");
  const Finished more = run(1);
  expect_ok(more);
  EXPECT_THAT(more.out, AllOf(HasSubstr("changed since that checkpoint: train.epochs: 2 -> 3"),
                              Not(HasSubstr("were done already"))));
}

TEST_F(TrainerValidation, AHeldBackShareAndAConfusionMatrix) {
  write_classes("data.csv", 60);
  unset("data.validation");
  set("data.validation_share", "0.25");
  set("data.target", "kind");
  set("loss.name", "cross_entropy");
  set("optimizer.lr", "0.5");
  set("train.epochs", "20");
  set("validation.confusion", path("cm"));
  const Finished trained = run(2);
  expect_ok(trained);
  EXPECT_THAT(trained.out, AllOf(HasSubstr("45 samples"), HasSubstr("validation accuracy 100.00 %")));
  EXPECT_THAT(read("cm/confusion.csv"), HasSubstr("target,ant,bee,cow\nant,"));
  EXPECT_THAT(read("cm/confusion.svg"), HasSubstr("<svg"));
}

// data.train moved or copied: `latest` is for people, resume looks at the checkpoints.
TEST_F(TrainerValidation, ResumeOfAFolderWhoseLatestDangles) {
  set("checkpoint.dir", path("old"));
  set("checkpoint.every_steps", "4");
  set("train.max_steps", "8");
  expect_ok(run(1));
  fs::remove(path("old/latest"));
  fs::create_symlink("step-000000099", path("old/latest"));
  set("checkpoint.dir", path("new"));
  set("checkpoint.resume", path("old"));
  set("train.max_steps", "0");
  const Finished resumed = run(1);
  expect_ok(resumed);
  EXPECT_THAT(resumed.out, HasSubstr("step-000000008 at step 8"));
}

// `trainer | head` and a broken pipe elsewhere: what was learnt is not lost.
TEST_F(TrainerValidation, ABrokenPipeLosesNothing) {
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "0");
  set("log.every_steps", "1");
  std::string line = (std::string(DDPRUN_BINARY_DIR) + "/trainer") + " --config " + write_config() + " | head -n 1";
  const Finished piped = runner().run({"/bin/sh", "-c", line});
  EXPECT_EQ(piped.code, 0) << said(piped);
  // The pipe's last program ends first: wait for the trainer's save.
  for (int i = 0; i < 3000 && !fs::exists(path("ck/latest/model.safetensors")); ++i) ::usleep(20000);
  EXPECT_TRUE(fs::exists(path("ck/latest/model.safetensors")));
}

}  // namespace
}  // namespace ddprun::testing
