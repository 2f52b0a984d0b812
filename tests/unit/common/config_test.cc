#include "common/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <cstdlib>

#include "tests/support/common_temp_dir.h"

namespace ddprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Config parse(const std::string& text) {
  auto config = Config::parse(text, "c.yaml");
  EXPECT_TRUE(config) << config.error().message();
  return std::move(*config);
}

std::string parse_problem(const std::string& text) {
  const auto config = Config::parse(text, "c.yaml");
  EXPECT_FALSE(config) << text;
  return config ? "" : config.error().message();
}

std::string finish_problem(const Config& config) {
  const auto finished = config.finish();
  EXPECT_FALSE(finished);
  return finished ? "" : finished.error().message();
}

TEST(Config, ReadsEveryKindOfValue) {
  Config config = parse(
      "name: mlp\nlr: 1e-3\nepochs: 5\nshuffle: true\npath: /data/x\nbetas: [0.9, 0.999]\nwidths: [128, 64]\n"
      "augment: [crop, flip]\nmode: cosine\n");
  ConfigSection root = config.root();
  EXPECT_EQ(root.text("name", ""), "mlp");
  EXPECT_DOUBLE_EQ(root.real("lr", 0, 0, 1), 1e-3);
  EXPECT_EQ(root.integer("epochs", 1, 1, 100), 5);
  EXPECT_TRUE(root.boolean("shuffle", false));
  EXPECT_EQ(root.path("path", ""), "/data/x");
  EXPECT_THAT(root.reals("betas", {}), ElementsAre(0.9, 0.999));
  EXPECT_THAT(root.integers("widths", {}), ElementsAre(128, 64));
  EXPECT_THAT(root.texts("augment", {}), ElementsAre("crop", "flip"));
  EXPECT_EQ(root.choice("mode", "constant", {"constant", "cosine"}), "cosine");
  EXPECT_TRUE(config.finish());
}

TEST(Config, MissingAndEmptyKeysGiveTheFallbacks) {
  Config config = parse("a:\nb: ~\nc: ''\n");
  ConfigSection root = config.root();
  EXPECT_EQ(root.text("a", "fallback"), "fallback");
  EXPECT_FALSE(root.has("a"));
  EXPECT_EQ(root.integer("b", 7, 0, 9), 7);
  EXPECT_EQ(root.text("c", "fallback"), "");
  EXPECT_TRUE(root.has("c"));
  EXPECT_EQ(root.section("none").section("deeper").real("x", 2.5, 0, 9), 2.5);
  EXPECT_TRUE(config.finish());
  EXPECT_TRUE(parse("").finish());
  EXPECT_TRUE(parse("# only a remark\n").finish());
}

TEST(Config, AllSpellingsOfANumberAreTheSame) {
  for (const char* text : {"0.05", "5e-2", "5E-02", ".05", "5.0e-2", "+0.05", "+5e-2", "0.050"}) {
    Config config = parse("lr: " + std::string(text) + "\n");
    EXPECT_DOUBLE_EQ(config.root().real("lr", 0, 0, 1), 0.05) << text;
    EXPECT_TRUE(config.finish()) << text;
  }
  for (const char* text : {"1000", "1e3", "1.0e+3", "+1000", "1000.0"}) {
    Config config = parse("n: " + std::string(text) + "\n");
    EXPECT_EQ(config.root().integer("n", 0, 0, 5000), 1000) << text;
    EXPECT_TRUE(config.finish()) << text;
  }
}

TEST(Config, WhatIsNoNumberIsNamedWithItsLine) {
  for (const char* text :
       {"abc", "1e", "1_000", "0,5", "\"0.5\"", "'1'", "0x", "--1", "1 2", "nan", "inf", ".inf", "1e999"}) {
    Config config = parse("x: 1\noptimizer:\n  lr: " + std::string(text) + "\n");
    ConfigSection root = config.root();
    (void)root.integer("x", 0, 0, 9);
    EXPECT_DOUBLE_EQ(root.section("optimizer").real("lr", 0.25, 0, 1e300), 0.25) << text;
    EXPECT_THAT(finish_problem(config), StartsWith("c.yaml:3: optimizer.lr: '")) << text;
  }
  for (const char* text : {"1.5", "many", "1e99", "1_000"}) {
    Config config = parse("n: " + std::string(text) + "\n");
    EXPECT_EQ(config.root().integer("n", 3, 0, INT64_MAX), 3);
    EXPECT_THAT(finish_problem(config), StartsWith("c.yaml:1: n: '" + std::string(text) + "' is not a whole number"));
  }
}

TEST(Config, RangesAreChecked) {
  Config config = parse("batch_size: 0\n");
  (void)config.root().integer("batch_size", 64, 1, INT64_MAX);
  EXPECT_EQ(finish_problem(config), "c.yaml:1: batch_size: '0' is below 1");
  config = parse("p: 1.5\n");
  (void)config.root().real("p", 0, 0, 1);
  EXPECT_EQ(finish_problem(config), "c.yaml:1: p: '1.5' is outside of 0 to 1");
}

TEST(Config, UnknownKeysAreErrorsWithTheNearestName) {
  Config config = parse("optimizer:\n  name: sgd\n  learning_rat: 3\n");
  ConfigSection optimizer = config.root().section("optimizer");
  (void)optimizer.text("name", "");
  (void)optimizer.real("learning_rate", 0, 0, 9);
  EXPECT_EQ(finish_problem(config), "c.yaml:3: optimizer.learning_rat: unknown key: did you mean 'learning_rate'?");
  config = parse("zzz: {a: 1}\n");
  (void)config.root().section("model");
  EXPECT_EQ(finish_problem(config), "c.yaml:1: zzz: unknown key; known here: model");
}

TEST(Config, TheFirstBadValueIsReportedBeforeUnknownKeys) {
  Config config = parse("bogus: 1\nn: x\nm: y\n");
  (void)config.root().integer("n", 0, 0, 1);
  (void)config.root().integer("m", 0, 0, 1);
  EXPECT_THAT(finish_problem(config), StartsWith("c.yaml:2: n:"));
}

TEST(Config, DuplicateKeysAndBadSyntaxAreMalformed) {
  EXPECT_EQ(parse_problem("a:\n  lr: 1\n  b: 2\n  lr: 3\n"),
            "c.yaml:4: a.lr: the key is there twice (first in line 2)");
  EXPECT_THAT(parse_problem("a: [1, 2\nb: 3\n"), StartsWith("c.yaml:"));
  EXPECT_THAT(parse_problem("\tlr: 1\n"), StartsWith("c.yaml:1: not valid YAML"));
  EXPECT_THAT(parse_problem("a: 1\n---\nb: 2\n"), HasSubstr("c.yaml:3: a second document"));
  // yaml-cpp's LoadAll never comes back from the first.
  EXPECT_EQ(parse_problem(", lr: 1\n"), "c.yaml:1: not valid YAML: unexpected text");
  EXPECT_THAT(parse_problem("]\n"), StartsWith("c.yaml:1: not valid YAML"));
  EXPECT_THAT(parse_problem("a: [1]\n]\nb: 2\n"), StartsWith("c.yaml:2:"));
  EXPECT_THAT(parse_problem("- 1\n- 2\n"), HasSubstr("'key: value'"));
  EXPECT_THAT(parse_problem("just words\n"), HasSubstr("'key: value'"));
  EXPECT_THAT(parse_problem("? [a, b]\n: 1\n"), HasSubstr("plain word"));
  EXPECT_THAT(parse_problem(std::string(5000, '[')), StartsWith("c.yaml:1:"));
  EXPECT_THAT(parse_problem("a: &x [*x]\n"), StartsWith("c.yaml:1:"));
}

TEST(Config, WrongShapesAreErrors) {
  Config config = parse("model: mlp\n");
  (void)config.root().section("model").text("name", "");
  EXPECT_EQ(finish_problem(config), "c.yaml:1: model: must be a group of keys, not a single value");
  config = parse("lr: [1, 2]\n");
  (void)config.root().real("lr", 0, 0, 9);
  EXPECT_EQ(finish_problem(config), "c.yaml:1: lr: must be a single value, not a list");
  config = parse("betas: {a: 1}\n");
  (void)config.root().reals("betas", {});
  EXPECT_EQ(finish_problem(config), "c.yaml:1: betas: must be a list, not a group of keys");
  config = parse("betas:\n  - 0.9\n  - x\n");
  (void)config.root().reals("betas", {});
  EXPECT_EQ(finish_problem(config), "c.yaml:3: betas: 'x' is not a number");
  config = parse("flag: 1\n");
  (void)config.root().boolean("flag", false);
  EXPECT_EQ(finish_problem(config), "c.yaml:1: flag: '1' is neither true nor false");
  config = parse("mode: cosin\n");
  (void)config.root().choice("mode", "a", {"constant", "cosine"});
  EXPECT_EQ(finish_problem(config), "c.yaml:1: mode: 'cosin' is not one of constant, cosine: did you mean 'cosine'?");
  config = parse("data: {}\n");
  (void)config.root().section("data").required_text("train");
  EXPECT_EQ(finish_problem(config), "c.yaml:1: data.train: is missing");
}

// A misspelt key explains what is missing.
TEST(Config, AMissingKeyComesAfterAnUnknownOne) {
  Config config = parse("dato: {train: a}\n");
  (void)config.root().section("data").required_text("train");
  EXPECT_EQ(finish_problem(config), "c.yaml:1: dato: unknown key: did you mean 'data'?");
  config = parse("data: {tran: a}\n");
  config.root().section("data").missing("train", "is missing: where are the data?");
  (void)config.root().section("data").text("train", "");
  EXPECT_EQ(finish_problem(config), "c.yaml:1: data.tran: unknown key: did you mean 'train'?");
  config = parse("data: {}\n");
  config.root().section("data").missing("train", "is missing: where are the data?");
  EXPECT_EQ(finish_problem(config), "c.yaml:1: data.train: is missing: where are the data?");
}

TEST(Config, MergeKeysAreRead) {
  Config config = parse("a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], x: 9}\nd:\n  <<: *b\n  \"<<\": 5\n");
  ConfigSection c = config.root().section("c");
  EXPECT_EQ(c.integer("x", 0, 0, 9), 9);
  EXPECT_EQ(c.integer("y", 0, 0, 9), 2);
  EXPECT_EQ(c.integer("z", 0, 0, 9), 4);
  EXPECT_EQ(config.root().section("d").integer("z", 0, 0, 9), 4);
  EXPECT_EQ(config.root().section("d").integer("<<", 0, 0, 9), 5) << "a quoted one is a name";
  auto wrong = Config::parse("a:\n  <<: 3\n", "c.yaml");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message(),
            "c.yaml:2: a.<<: merges a group of keys (<<: *name) or a list of them, nothing else");
}

TEST(Config, AVariableInAFlowMappingMustBeQuoted) {
  for (const char* text : {"data: {train: ${D}/x.csv}\n", "data: {a: ${D}, b: 1}\n", "data: [${D}, x]\n"}) {
    auto wrong = Config::parse(text, "c.yaml");
    ASSERT_FALSE(wrong) << text;
    EXPECT_NE(wrong.error().message().find("must be quoted: \"${NAME}/file\""), std::string::npos)
        << wrong.error().message();
  }
}

TEST(Config, PathsOfAListAreExpanded) {
  ::setenv("DDPRUN_TEST_DIR", "/data", 1);
  Config config = parse("train: ['${DDPRUN_TEST_DIR}/a', b]\n");
  EXPECT_EQ(config.root().paths("train"), (std::vector<std::string>{"/data/a", "b"}));
  config = parse("train: ['${DDPRUN_TEST_NOT_SET}/a']\n");
  (void)config.root().paths("train");
  EXPECT_NE(finish_problem(config).find("DDPRUN_TEST_NOT_SET is not set"), std::string::npos);
}

TEST(Config, AScalarMayStandForASection) {
  Config config = parse("loss: mse\n");
  ConfigSection loss = config.root().section("loss", "name");
  EXPECT_EQ(loss.text("name", ""), "mse");
  EXPECT_DOUBLE_EQ(loss.real("label_smoothing", 0.5, 0, 1), 0.5);
  EXPECT_TRUE(config.finish());
  // ... and is still one after --set gave it a neighbour.
  config = parse("loss: mse\n");
  EXPECT_TRUE(config.override_value("loss.label_smoothing=0.1"));
  loss = config.root().section("loss", "name");
  EXPECT_EQ(loss.text("name", ""), "mse");
  EXPECT_DOUBLE_EQ(loss.real("label_smoothing", 0, 0, 1), 0.1);
  EXPECT_TRUE(config.finish());
}

TEST(Config, SetReplacesAndAddsValues) {
  Config config = parse("data:\n  batch_size: 64\n");
  EXPECT_TRUE(config.override_value("data.batch_size=32"));
  EXPECT_TRUE(config.override_value("data.normalize.mean=[0.5, 0.25]"));
  EXPECT_TRUE(config.override_value("train.epochs=3"));
  EXPECT_TRUE(config.override_value("name=a=b"));
  ConfigSection data = config.root().section("data");
  EXPECT_EQ(data.integer("batch_size", 0, 1, 100), 32);
  EXPECT_THAT(data.section("normalize").reals("mean", {}), ElementsAre(0.5, 0.25));
  EXPECT_EQ(config.root().section("train").integer("epochs", 0, 0, 9), 3);
  EXPECT_EQ(config.root().text("name", ""), "a=b");
  EXPECT_TRUE(config.finish());
}

TEST(Config, ErrorsOfSetNameIt) {
  Config config = parse("data: {batch_size: 64}\nlist: [1]\n");
  for (const char* text : {"no-equals", "=1", ".a=1", "a.=1", "a..b=1", "x={a: 1}", "x=[1", "list.a=1"}) {
    const auto result = config.override_value(text);
    ASSERT_FALSE(result) << text;
    EXPECT_THAT(result.error().message(), StartsWith("--set ")) << text;
  }
  EXPECT_TRUE(config.override_value("data.batch_size=many"));
  (void)config.root().section("data").integer("batch_size", 1, 1, 9);
  EXPECT_EQ(finish_problem(config), "--set data.batch_size: 'many' is not a whole number");
  config = parse("");
  EXPECT_TRUE(config.override_value("optimzer.lr=1"));
  (void)config.root().section("optimizer");
  EXPECT_EQ(finish_problem(config), "--set optimzer: unknown key: did you mean 'optimizer'?");
}

TEST(Config, PathsExpandHomeAndVariables) {
  ::setenv("DDPRUN_CONFIG_TEST", "v", 1);
  ::unsetenv("DDPRUN_CONFIG_TEST_UNSET");
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  Config config = parse("a: ~/x\nb: /d/${DDPRUN_CONFIG_TEST}/e\nc: $plain/~\n");
  if (!home.empty()) {
    EXPECT_EQ(config.root().path("a", ""), home + "/x");
  }
  EXPECT_EQ(config.root().path("b", ""), "/d/v/e");
  EXPECT_EQ(config.root().path("c", ""), "$plain/~");
  config = parse("a: /d/${DDPRUN_CONFIG_TEST_UNSET}/e\n");
  (void)config.root().path("a", "");
  EXPECT_THAT(finish_problem(config), HasSubstr("DDPRUN_CONFIG_TEST_UNSET is not set"));
  ::unsetenv("DDPRUN_CONFIG_TEST");
}

TEST(Config, ChecksBetweenValuesAreReportedAtTheirPlace) {
  Config config = parse("a: 1\nb:\n  c: 2\n");
  ConfigSection b = config.root().section("b");
  EXPECT_EQ(b.where("c"), "c.yaml:3: b.c");
  EXPECT_EQ(b.where("missing"), "c.yaml:2: b.missing");
  b.error("c", "must be below a");
  EXPECT_EQ(finish_problem(config), "c.yaml:3: b.c: must be below a");
}

TEST(Config, FilesThatCannotBeReadAreNamed) {
  const testing::TempDir folder;
  auto config = Config::load(folder.path() + "/none.yaml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code(), Errc::not_found);
  EXPECT_THAT(config.error().message(), HasSubstr("none.yaml"));
  EXPECT_FALSE(Config::load(folder.path()));
  EXPECT_TRUE(Config::load(folder.write("empty.yaml", "")));
  auto good = Config::load(folder.write("good.yaml", "a: 1\n"));
  ASSERT_TRUE(good);
  EXPECT_EQ(good->root().integer("a", 0, 0, 9), 1);
}

}  // namespace
}  // namespace ddprun
