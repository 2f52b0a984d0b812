#pragma once

#include <cstdint>
#include <memory>

#include "worker/engine/op.h"

namespace ddprun::engine {

std::shared_ptr<const Op> make_linear(std::int64_t rows, std::int64_t in, std::int64_t out, bool bias, bool in_out);
std::shared_ptr<const Op> make_conv(const ConvDesc& desc);
std::shared_ptr<const Op> make_batch_norm(const BatchNormDesc& desc);
std::shared_ptr<const Op> make_layer_norm(const LayerNormDesc& desc);
std::shared_ptr<const Op> make_gelu(std::int64_t count);
std::shared_ptr<const Op> make_silu(std::int64_t count);
std::shared_ptr<const Op> make_relu(std::int64_t count);
std::shared_ptr<const Op> make_add(std::int64_t count);
std::shared_ptr<const Op> make_dropout(std::int64_t count, double p);
std::shared_ptr<const Op> make_embedding(std::int64_t count, std::int64_t dim, std::int64_t rows);
std::shared_ptr<const Op> make_add_positions(std::int64_t batch, std::int64_t tokens, std::int64_t dim,
                                             std::int64_t rows);
std::shared_ptr<const Op> make_attention(const AttentionDesc& desc);
std::shared_ptr<const Op> make_max_pool(const PoolDesc& desc);
std::shared_ptr<const Op> make_mean_pool(std::int64_t n, std::int64_t positions, std::int64_t channels);
std::shared_ptr<const Op> make_cross_entropy(const CrossEntropyDesc& desc);
std::shared_ptr<const Op> make_mse(std::int64_t count);

}  // namespace ddprun::engine
