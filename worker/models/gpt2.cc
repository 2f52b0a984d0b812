#include "worker/models/builders.h"

namespace ddprun::engine {

// Hugging Face's GPT2LMHeadModel: names, [in, out] weights, tied head. Dropout in its three places: embeddings,
// attention probabilities and the two projections back into the residual stream.
void build_gpt2(const ModelConfig& config, std::int64_t batch_size, Model& model) {
  Graph& g = model.graph;
  const std::int64_t width = config.gpt2.embedding;
  model.input = g.input("input", Shape{batch_size, config.gpt2.sequence_length}, DType::i32);
  Value x = g.embedding(model.input, "transformer.wte.weight", config.gpt2.vocabulary, width);
  x = g.dropout(g.add_positions(x, "transformer.wpe.weight", config.gpt2.context), config.gpt2.dropout);
  for (std::int64_t layer = 0; layer < config.gpt2.layers; ++layer) {
    const Graph::Segment segment = g.checkpoint();
    const std::string name = "transformer.h." + std::to_string(layer);
    Value y = g.layer_norm(x, name + ".ln_1");
    y = g.linear(y, name + ".attn.c_attn", 3 * width, Bias::yes, WeightLayout::in_out);
    y = g.causal_attention(y, config.gpt2.heads, config.gpt2.dropout);
    y = g.linear(y, name + ".attn.c_proj", width, Bias::yes, WeightLayout::in_out);
    x = g.add(x, g.dropout(y, config.gpt2.dropout));
    y = g.layer_norm(x, name + ".ln_2");
    y = g.linear(y, name + ".mlp.c_fc", 4 * width, Bias::yes, WeightLayout::in_out);
    y = g.linear(g.gelu(y), name + ".mlp.c_proj", width, Bias::yes, WeightLayout::in_out);
    x = g.add(x, g.dropout(y, config.gpt2.dropout));
  }
  x = g.layer_norm(x, "transformer.ln_f");
  model.logits = g.tied_linear(x, "transformer.wte.weight");
}

}  // namespace ddprun::engine
