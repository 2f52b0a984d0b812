// dump_model NAME KEY=VALUE...: a model of the trainer with its weights, for test_trainer_models.py.
//   outputs width channels image_size stem(small) inputs hidden(8x4) norm(batch): as in the trainer's configuration
//   vocabulary context sequence_length layers heads embedding
//   weights=FILE  safetensors to read; else initialised from seed=N
//   save=FILE     raw: for each tensor a line "name count dtype", then its bytes
//   input=FILE batch=N logits=FILE   evaluates raw f32 (gpt2: i32) inputs to raw f32 logits
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "worker/engine/plan.h"
#include "worker/kernels/kernels.h"
#include "worker/models/models.h"
#include "worker/run/weights.h"

namespace {

using namespace ddprun;

std::vector<std::int64_t> widths(const std::string& text) {
  std::vector<std::int64_t> out;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    out.push_back(std::strtoll(at, &end, 10));
    at = *end == 'x' ? end + 1 : end;
  }
  return out;
}

engine::ModelConfig config_from(const std::string& name, std::map<std::string, std::string>& keys) {
  engine::ModelConfig c;
  c.name = name;
  const std::map<std::string, std::int64_t*> numbers = {
      {"outputs", &c.outputs},         {"width", &c.width},
      {"channels", &c.channels},       {"image_size", &c.image_size},
      {"inputs", &c.inputs},           {"vocabulary", &c.gpt2.vocabulary},
      {"context", &c.gpt2.context},    {"sequence_length", &c.gpt2.sequence_length},
      {"layers", &c.gpt2.layers},      {"heads", &c.gpt2.heads},
      {"embedding", &c.gpt2.embedding}};
  for (const auto& [key, place] : numbers) {
    if (keys.contains(key)) *place = std::atoll(keys[key].c_str());
  }
  if (keys["stem"] == "small") c.stem = engine::Stem::small;
  if (keys["norm"] == "batch") c.norm = engine::Norm::batch;
  c.hidden = widths(keys["hidden"]);
  return c;
}

template <typename T>
T good(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "dump_model: %s\n", result.error().message().c_str());
  std::exit(1);
}
void good(const Result<void>& result) {
  if (result) return;
  std::fprintf(stderr, "dump_model: %s\n", result.error().message().c_str());
  std::exit(1);
}

void save(const engine::ParameterStore& store, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  for (const engine::Parameter& p : store.parameters()) {
    std::vector<char> bytes(p.size_bytes());
    store.read(p.id, bytes.data());
    file << p.name << ' ' << p.count() << ' ' << engine::name_of(p.dtype) << '\n';
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
}

void evaluate(const engine::Model& model, engine::ParameterStore& store, const std::string& input,
              const std::string& output) {
  auto plan = good(engine::Plan::create(model.graph, store, {.training = false}));
  std::ifstream file(input, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.size() != static_cast<std::size_t>(model.graph.shape(model.input).count()) * 4) {
    std::fprintf(stderr, "dump_model: %s has %zu bytes\n", input.c_str(), bytes.size());
    std::exit(1);
  }
  good(plan->load(model.input, bytes.data()));
  const std::vector<std::int32_t> target(static_cast<std::size_t>(model.graph.shape(model.target).count()));
  good(plan->load(model.target, target.data()));
  plan->forward();
  std::vector<float> logits(static_cast<std::size_t>(model.graph.shape(model.logits).count()));
  plan->read(model.logits, logits.data());
  std::ofstream(output, std::ios::binary)
      .write(reinterpret_cast<const char*>(logits.data()), static_cast<std::streamsize>(logits.size() * 4));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::map<std::string, std::string> keys;
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    keys[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  const engine::ModelConfig config = config_from(argv[1], keys);
  const std::int64_t batch = keys.contains("batch") ? std::atoll(keys["batch"].c_str()) : 1;
  const engine::Model model = good(engine::build_model(config, {}, batch));
  auto kernels = good(engine::make_cpu_kernels());
  auto store = good(engine::ParameterStore::create(model.graph, *kernels));
  engine::initialise(config, *store, static_cast<std::uint64_t>(std::atoll(keys["seed"].c_str())));
  if (keys.contains("weights")) {
    const auto file = good(checkpoint::SafetensorsFile::open(keys["weights"]));
    good(trainer::load_weights(file, keys["weights"], *store));
  }
  if (keys.contains("save")) save(*store, keys["save"]);
  if (keys.contains("input")) evaluate(model, *store, keys["input"], keys["logits"]);
  return 0;
}
