#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "worker/apply/commands.h"
#include "worker/apply/loaded_model.h"
#include "worker/apply/sampling.h"
#include "worker/data/tokenizer.h"
#include "worker/run/model_card.h"
#include "worker/tools/subcommand.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t kLeastTokens = 32;  // of a plan

OptionTable make_table() {
  std::vector<OptionSpec> specs = {
      make_option(
          "weights", OptionKind::text, "", "PATH",
          "a checkpoint, a folder of them (best, else latest) or Hugging Face's: model.safetensors and config.json"),
      make_option("vocabulary", OptionKind::text, "", "bytes|FILE",
                  "as for `trainer tokenize`; when not given, bytes for a model of 256 tokens"),
      make_option("prompt", OptionKind::text, "", "TEXT", "what the text begins with"),
      make_option("prompt-file", OptionKind::text, "", "FILE", "the same from a file"),
      make_option("prompt-ids", OptionKind::text, "", "N,N,...", "the same as token numbers; numbers are printed"),
      make_option("tokens", OptionKind::integer, "100", "N", "how many are added"),
      make_option("temperature", OptionKind::real, "0", "T", "0: always the likeliest token; 1: as the model says"),
      make_option("top-k", OptionKind::integer, "0", "K", "choose among the K likeliest only; 0: all"),
      make_option("top-p", OptionKind::real, "1", "P", "choose among the fewest that have this probability together"),
      make_option("seed", OptionKind::integer, "0", "N", "of the choices")};
  specs[5].min_value = 1;
  specs[6].min_value = 0;
  specs[7].min_value = 0;
  specs[8].min_value = 0;
  specs[8].max_value = 1;
  specs[9].min_value = 0;
  return OptionTable("trainer generate", "trainer generate --weights PATH --prompt TEXT", std::move(specs),
                     RestPolicy::none);
}

// Answers with the logits behind a text; plans for lengths of powers of two, made when they are needed.
class TextModel {
 public:
  TextModel(engine::ModelConfig config, LoadedModel& loaded) : config_(std::move(config)), loaded_(loaded) {}

  std::int64_t vocabulary() const { return config_.gpt2.vocabulary; }

  // Of the token after `tokens`, of which the last `context` count. Valid until the next call.
  Result<std::span<const float>> logits(std::span<const std::int32_t> tokens) {
    const auto context = static_cast<std::size_t>(config_.gpt2.context);
    if (tokens.size() > context) tokens = tokens.last(context);
    auto planned = plan_for(static_cast<std::int64_t>(tokens.size()));
    if (!planned) return std::move(planned).error();
    engine::Plan& plan = *(*planned)->plan;
    const engine::Model& model = (*planned)->model;
    const auto length = static_cast<std::size_t>(model.graph.shape(model.input)[1]);
    // Attention looks back only, so what fills the rest changes nothing before it.
    std::vector<std::int32_t> padded(length, 0);
    std::copy(tokens.begin(), tokens.end(), padded.begin());
    auto loaded = plan.load(model.input, padded.data());
    if (loaded) loaded = plan.load(model.target, padded.data());
    if (!loaded) return std::move(loaded).error();
    plan.forward();
    values_.resize(static_cast<std::size_t>(model.graph.shape(model.logits).count()));
    plan.read(model.logits, values_.data());
    const auto width = static_cast<std::size_t>(vocabulary());
    return std::span<const float>(values_).subspan((tokens.size() - 1) * width, width);
  }

 private:
  Result<PlannedModel*> plan_for(std::int64_t tokens) {
    std::int64_t length = std::min(kLeastTokens, config_.gpt2.context);
    while (length < tokens) length = std::min(2 * length, config_.gpt2.context);
    auto& plans = plans_[length];
    if (!plans) {
      config_.gpt2.sequence_length = length;
      plans = std::make_unique<Plans>(config_, engine::LossConfig{}, *loaded_.store, false);
    }
    return plans->get(1, /*training=*/false);
  }

  engine::ModelConfig config_;
  LoadedModel& loaded_;
  std::map<std::int64_t, std::unique_ptr<Plans>> plans_;
  std::vector<float> values_;
};

Result<std::vector<std::int32_t>> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    std::int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next < end && *next != ',')) {
      return Error(Errc::invalid_argument, "--prompt-ids: '" + text + "' is not a list of numbers with commas");
    }
    ids.push_back(id);
    at = next < end ? next + 1 : end;
  }
  return ids;
}

Result<std::optional<data::Tokenizer>> open_vocabulary(const ParsedOptions& options, std::int64_t size) {
  if (options.given("prompt-ids")) return std::optional<data::Tokenizer>();
  std::string vocabulary = options.text("vocabulary");
  if (vocabulary.empty() && size == 256) vocabulary = "bytes";
  if (vocabulary.empty()) {
    return Error(Errc::invalid_argument,
                 fmt::format("--vocabulary is missing: the model has {} tokens, of which text? Give the file that "
                             "`trainer tokenize` had",
                             size));
  }
  auto tokenizer = vocabulary == "bytes" ? Result<data::Tokenizer>(data::Tokenizer::bytes())
                                         : data::Tokenizer::from_file(vocabulary);
  if (!tokenizer) return std::move(tokenizer).error().with_context("--vocabulary");
  if (tokenizer->size() > size) {
    return Error(Errc::invalid_argument,
                 fmt::format("--vocabulary: {} has {} tokens, the model {}", vocabulary, tokenizer->size(), size));
  }
  return std::optional<data::Tokenizer>(std::move(*tokenizer));
}

Result<std::vector<std::int32_t>> prompt_of(const ParsedOptions& options, std::optional<data::Tokenizer>& tokenizer) {
  if (!tokenizer) return parse_ids(options.text("prompt-ids"));
  std::string text = options.text("prompt");
  if (options.given("prompt-file")) {
    auto read = read_text(options.text("prompt-file"));
    if (!read) return std::move(read).error().with_context("--prompt-file");
    text = std::move(*read);
  }
  std::vector<std::uint16_t> tokens;
  tokenizer->encode(text, tokens);
  std::fputs(text.c_str(), stdout);
  return std::vector<std::int32_t>(tokens.begin(), tokens.end());
}

Result<void> run(const ParsedOptions& options) {
  auto weights = find_weights(options.text("weights"));
  if (!weights) return std::move(weights).error();
  const std::string card = (std::filesystem::path(*weights).parent_path() / kModelConfigFile).string();
  auto text = read_text(card);
  if (!text) return std::move(text).error().with_context("the model's sizes lie beside its weights");
  auto model = gpt2_from_json(*text, card);
  if (!model) return std::move(model).error();
  TrainerConfig config;
  config.model = *model;
  config.model.gpt2.sequence_length = std::min(kLeastTokens, config.model.gpt2.context);
  auto loaded = load_model(config, *weights);
  if (!loaded) return std::move(loaded).error();
  TextModel speaker(config.model, *loaded);
  auto tokenizer = open_vocabulary(options, speaker.vocabulary());
  if (!tokenizer) return std::move(tokenizer).error();
  auto tokens = prompt_of(options, *tokenizer);
  if (!tokens) return std::move(tokens).error();
  if (tokens->empty()) return Error(Errc::invalid_argument, "the prompt is empty: one token at least is needed");
  const Sampling sampling{options.real("temperature"), options.integer("top-k"), options.real("top-p")};
  engine::Generator random(static_cast<std::uint64_t>(options.integer("seed")));
  const auto end_of_text = *tokenizer ? (*tokenizer)->end_of_text() : std::nullopt;
  for (std::int64_t i = 0; i < options.integer("tokens"); ++i) {
    auto logits = speaker.logits(*tokens);
    if (!logits) return std::move(logits).error();
    const std::int64_t token = choose_token(*logits, sampling, random);
    if (end_of_text && token == *end_of_text) break;
    tokens->push_back(static_cast<std::int32_t>(token));
    const std::string shown = *tokenizer ? (*tokenizer)->decode(static_cast<std::uint16_t>(token))
                                         : fmt::format("{}{}", i > 0 ? "," : "", token);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  }
  std::fputs("\n", stdout);
  return {};
}

}  // namespace

int generate_main(std::span<const std::string> arguments) {
  const auto misuse = [](const ParsedOptions& options) -> std::string {
    int prompts = 0;
    for (const char* name : {"prompt", "prompt-file", "prompt-ids"}) prompts += options.given(name) ? 1 : 0;
    if (!options.given("weights")) return "needs --weights PATH (see --help)";
    return prompts == 1 ? "" : "needs one of --prompt, --prompt-file and --prompt-ids";
  };
  return run_subcommand("generate", make_table(), arguments, misuse, run);
}

}  // namespace ddprun::trainer
