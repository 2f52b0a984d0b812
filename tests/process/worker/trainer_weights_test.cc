#include <gmock/gmock.h>

#include "tests/process/worker/trainer_support.h"

// model.weights from files that something else wrote.
namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;

class TrainerWeights : public ::testing::Test, public TrainerRunner {
 protected:
  // `from`, a safetensors file, with `change` made to its header.
  template <typename Change>
  void rewrite(const std::string& from, const std::string& to, Change change) {
    const std::string file = read(from);
    std::size_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(file[static_cast<std::size_t>(i)]);
    Json header = Json::parse(file.substr(8, length)), changed = Json::object();
    for (const auto& [name, entry] : header.items()) change(name, entry, changed);
    std::string text = changed.dump(), size(8, '\0');
    text.resize((text.size() + 7) / 8 * 8, ' ');
    for (int i = 0; i < 8; ++i) size[static_cast<std::size_t>(i)] = static_cast<char>(text.size() >> (8 * i) & 0xff);
    runner().write(to, size + text + file.substr(8 + length));
  }

  void train_once() {
    write_csv("data.csv", 40, 3);
    set("checkpoint.dir", path("ck"));
    expect_ok(run(0));
    unset("checkpoint.dir");
    set("train.max_steps", "1");
    set("output.metrics", path("m.jsonl"));
  }
};

TEST_F(TrainerWeights, NamesThatAWrapperPrefixedAreTaken) {
  train_once();
  set("model.weights", path("ck/latest/model.safetensors"));
  expect_ok(run(0));
  const std::string plain = curve("m.jsonl");
  for (const std::string prefix : {"module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."}) {
    SCOPED_TRACE(prefix);
    rewrite("ck/latest/model.safetensors", "w.safetensors", [&](const std::string& name, const Json& entry, Json& to) {
      to[name == "__metadata__" ? name : prefix + name] = entry;
    });
    set("model.weights", path("w.safetensors"));
    expect_ok(run(0));
    EXPECT_EQ(curve("m.jsonl"), plain);
  }
}

TEST_F(TrainerWeights, AFileOfAnotherModelNamesWhatItHas) {
  train_once();
  rewrite("ck/latest/model.safetensors", "w.safetensors", [&](const std::string& name, const Json& entry, Json& to) {
    to[name == "__metadata__" ? name : "encoder." + name] = entry;
  });
  set("model.weights", path("w.safetensors"));
  const Finished end = run(0);
  EXPECT_NE(end.code, 0);
  EXPECT_THAT(end.err, ::testing::AllOf(HasSubstr("has no tensor '"), HasSubstr("it has 'encoder.")));
}

}  // namespace
}  // namespace ddprun::testing
