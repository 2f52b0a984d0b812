#include "worker/run/model_card.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace ddprun::trainer {
namespace {

using Json = nlohmann::ordered_json;

Json gpt2_json(const engine::Gpt2Config& gpt) {
  Json json;
  json["architectures"] = {"GPT2LMHeadModel"};
  json["model_type"] = "gpt2";
  json["vocab_size"] = gpt.vocabulary;
  json["n_positions"] = gpt.context;
  json["n_ctx"] = gpt.context;
  json["n_embd"] = gpt.embedding;
  json["n_layer"] = gpt.layers;
  json["n_head"] = gpt.heads;
  json["n_inner"] = nullptr;
  json["activation_function"] = "gelu_new";
  json["layer_norm_epsilon"] = 1e-5;
  for (const char* place : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) json[place] = gpt.dropout;
  json["initializer_range"] = 0.02;
  // GPT-2's end of text; vocabularies of other sizes (bytes) have none that generation should stop at.
  json["bos_token_id"] = json["eos_token_id"] = gpt.vocabulary == 50257 ? Json(50256) : Json(nullptr);
  json["tie_word_embeddings"] = true;
  json["torch_dtype"] = "float32";
  return json;
}

std::string text_at(const nlohmann::json& json, const char* key, const char* fallback) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : fallback;
}

const char* name_of(engine::Norm norm) {
  return norm == engine::Norm::layer ? "layer" : norm == engine::Norm::batch ? "batch" : "none";
}

}  // namespace

std::string model_config_json(const engine::ModelConfig& model, const data::SampleSpec& data) {
  Json json;
  if (model.name == "gpt2") {
    json = gpt2_json(model.gpt2);
  } else {
    json["model_type"] = "ddprun";
    json["name"] = model.name;
    json["outputs"] = model.outputs;
    if (model.name == "mlp") {
      json["hidden"] = model.hidden;
      json["activation"] = model.activation == engine::Activation::gelu   ? "gelu"
                           : model.activation == engine::Activation::silu ? "silu"
                                                                          : "relu";
      json["norm"] = name_of(model.norm);
      json["dropout"] = model.dropout;
    }
    if (model.name.rfind("resnet", 0) == 0) {
      json["stem"] = model.stem == engine::Stem::small ? "small" : "imagenet";
      json["width"] = model.width;
      json["channels"] = model.channels;
      json["image_size"] = model.image_size;
    } else {
      json["inputs"] = model.inputs;
    }
    if (!data.class_names.empty()) {
      for (std::size_t i = 0; i < data.class_names.size(); ++i) {
        json["id2label"][std::to_string(i)] = data.class_names[i];
      }
    }
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<std::vector<std::string>> complete_from_json(const std::string& text, const std::string& name,
                                                    engine::ModelConfig& model) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error(Errc::malformed, name + ": not a JSON object");
  if (const std::string kind = text_at(json, "name", "unknown"); kind != model.name) {
    return Error(Errc::invalid_argument,
                 fmt::format("{}: the weights are of model {}, the configuration says {}", name, kind, model.name));
  }
  const auto read = [&json](const char* key, std::int64_t& value) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_number_integer()) value = found->get<std::int64_t>();
  };
  read("outputs", model.outputs);
  read("inputs", model.inputs);
  read("channels", model.channels);
  read("image_size", model.image_size);
  std::vector<std::string> names;
  if (const auto labels = json.find("id2label"); labels != json.end() && labels->is_object()) {
    for (std::size_t i = 0; labels->contains(std::to_string(i)); ++i) {
      const auto& label = (*labels)[std::to_string(i)];
      names.push_back(label.is_string() ? label.get<std::string>() : std::to_string(i));
    }
  }
  return names;
}

Result<engine::ModelConfig> gpt2_from_json(const std::string& text, const std::string& name) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error(Errc::malformed, name + ": not a JSON object");
  if (const std::string type = text_at(json, "model_type", ""); type != "gpt2") {
    return Error(Errc::invalid_argument, fmt::format("{}: model_type is '{}', text comes from gpt2 only", name, type));
  }
  engine::ModelConfig model;
  model.name = "gpt2";
  std::string wrong;
  const auto read = [&json, &wrong](const char* key, std::int64_t& value) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_number_integer() && found->get<std::int64_t>() > 0) {
      value = found->get<std::int64_t>();
    } else if (wrong.empty()) {
      wrong = key;
    }
  };
  read("vocab_size", model.gpt2.vocabulary);
  read("n_positions", model.gpt2.context);
  read("n_embd", model.gpt2.embedding);
  read("n_layer", model.gpt2.layers);
  read("n_head", model.gpt2.heads);
  if (!wrong.empty()) return Error(Errc::malformed, fmt::format("{}: '{}' is missing or no number", name, wrong));
  const std::string activation = text_at(json, "activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    return Error(Errc::invalid_argument,
                 fmt::format("{}: activation_function is {}, only gelu_new is known", name, activation));
  }
  model.gpt2.sequence_length = model.gpt2.context;
  return model;
}

}  // namespace ddprun::trainer
