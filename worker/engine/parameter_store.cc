#include "worker/engine/parameter_store.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "worker/kernels/kernels.h"

namespace ddprun::engine {
namespace {

std::size_t padded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Result<std::unique_ptr<ParameterStore>> ParameterStore::create(const Graph& graph, Kernels& kernels,
                                                               std::span<const std::string> frozen) {
  std::unique_ptr<ParameterStore> store(new ParameterStore(kernels));
  const DType master = kernels.master_type();
  std::size_t bytes = 0, mirror_bytes = 0, counters = 0;
  for (const ParameterSpec& spec : graph.parameters()) {
    Parameter p;
    p.id = {static_cast<std::uint32_t>(store->parameters_.size())};
    p.name = spec.name;
    p.shape = spec.shape;
    p.dtype = spec.counter ? DType::i64 : master;
    p.buffer = spec.buffer;
    p.trainable = !spec.buffer;
    p.on_host = spec.counter;
    if (spec.counter) {
      ++counters;
    } else {
      bytes += padded(p.size_bytes());
      if (spec.low_precision && kernels.low_precision()) {
        mirror_bytes += padded(p.count() * size_of(kernels.activation_type()));
      }
    }
    store->by_name_.emplace(p.name, p.id.index);
    store->parameters_.push_back(std::move(p));
  }
  for (const std::string& pattern : frozen) {
    bool matched = false;
    for (Parameter& p : store->parameters_) {
      if (p.buffer || fnmatch(pattern.c_str(), p.name.c_str(), 0) != 0) continue;
      p.trainable = false;
      matched = true;
    }
    if (!matched) return Error(Errc::invalid_argument, fmt::format("no parameter matches '{}'", pattern));
  }
  store->arena_bytes_ = bytes;
  store->counters_.assign(counters, 0);
  store->arena_ = kernels.allocate(bytes);
  if (mirror_bytes > 0) store->mirror_arena_ = kernels.allocate(mirror_bytes);
  if (store->arena_ == nullptr || (mirror_bytes > 0 && store->mirror_arena_ == nullptr)) {
    return Error(Errc::system, fmt::format("no memory for {} bytes of parameters", bytes + mirror_bytes));
  }
  char* data = static_cast<char*>(store->arena_);
  char* mirror = static_cast<char*>(store->mirror_arena_);
  std::size_t counter = 0;
  for (Parameter& p : store->parameters_) {
    if (p.on_host) {
      p.data = &store->counters_[counter++];
      continue;
    }
    p.data = data;
    data += padded(p.size_bytes());
    if (graph.parameters()[p.id.index].low_precision && kernels.low_precision()) {
      p.mirror = mirror;
      mirror += padded(p.count() * size_of(kernels.activation_type()));
    }
  }
  return store;
}

ParameterStore::ParameterStore(Kernels& kernels) : kernels_(kernels) {}

ParameterStore::~ParameterStore() {
  for (void* memory : {arena_, mirror_arena_, gradient_arena_}) {
    if (memory != nullptr) kernels_.release(memory);
  }
}

std::optional<ParamId> ParameterStore::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  return ParamId{found->second};
}

void ParameterStore::set_gradient(ParamId id, void* gradient) {
  CHECK(parameters_[id.index].trainable, "gradient memory for a parameter that is not trained");
  parameters_[id.index].gradient = gradient;
  chunks_.clear();
}

std::span<const UpdateChunk> ParameterStore::chunks() const {
  constexpr std::size_t kChunk = 32768;
  if (!chunks_.empty()) return chunks_;
  for (const Parameter& p : parameters_) {
    if (!p.trainable) continue;
    CHECK(p.gradient != nullptr, "no gradient memory bound");
    const std::size_t width = size_of(p.dtype);
    for (std::size_t begin = 0; begin < p.count(); begin += kChunk) {
      UpdateChunk chunk;
      chunk.parameter = static_cast<char*>(p.data) + begin * width;
      chunk.gradient = static_cast<char*>(p.gradient) + begin * width;
      if (p.mirror != nullptr) chunk.low = static_cast<char*>(p.mirror) + begin * size_of(kernels_.activation_type());
      chunk.count = static_cast<std::int64_t>(std::min(kChunk, p.count() - begin));
      chunks_.push_back(chunk);
    }
  }
  return chunks_;
}

void ParameterStore::allocate_gradients() {
  CHECK(gradient_arena_ == nullptr, "gradients are allocated once");
  std::size_t bytes = 0;
  for (const Parameter& p : parameters_) {
    if (p.trainable && p.gradient == nullptr) bytes += padded(p.size_bytes());
  }
  gradient_arena_ = kernels_.allocate(bytes);
  chunks_.clear();
  CHECK(gradient_arena_ != nullptr, "no memory for gradients");
  char* next = static_cast<char*>(gradient_arena_);
  for (Parameter& p : parameters_) {
    if (!p.trainable || p.gradient != nullptr) continue;
    p.gradient = next;
    next += padded(p.size_bytes());
  }
}

void ParameterStore::read(ParamId id, void* host) const {
  const Parameter& p = parameters_[id.index];
  if (p.on_host) {
    std::memcpy(host, p.data, p.size_bytes());
  } else {
    kernels_.copy_out(host, p.data, p.size_bytes());
  }
}

void ParameterStore::write(ParamId id, const void* host) {
  const Parameter& p = parameters_[id.index];
  if (p.on_host) {
    std::memcpy(p.data, host, p.size_bytes());
    return;
  }
  kernels_.copy_in(p.data, host, p.size_bytes());
  if (p.mirror != nullptr) kernels_.to_low(p.mirror, p.data, p.shape.count());
}

std::vector<float> ParameterStore::read_f32(ParamId id) const {
  const Parameter& p = parameters_[id.index];
  CHECK(!p.on_host, "counters are i64");
  std::vector<float> values(p.count());
  if (p.dtype == DType::f32) {
    read(id, values.data());
    return values;
  }
  std::vector<double> wide(p.count());
  read(id, wide.data());
  for (std::size_t i = 0; i < wide.size(); ++i) values[i] = static_cast<float>(wide[i]);
  return values;
}

void ParameterStore::write_f32(ParamId id, std::span<const float> values) {
  const Parameter& p = parameters_[id.index];
  CHECK(!p.on_host && values.size() == p.count(), "write_f32: wrong size or a counter");
  if (p.dtype == DType::f32) {
    write(id, values.data());
    return;
  }
  const std::vector<double> wide(values.begin(), values.end());
  write(id, wide.data());
}

std::vector<float> ParameterStore::read_gradient_f32(ParamId id) const {
  const Parameter& p = parameters_[id.index];
  CHECK(p.gradient != nullptr, "no gradient memory bound");
  std::vector<float> values(p.count());
  if (p.dtype == DType::f32) {
    kernels_.copy_out(values.data(), p.gradient, p.size_bytes());
    return values;
  }
  std::vector<double> wide(p.count());
  kernels_.copy_out(wide.data(), p.gradient, p.size_bytes());
  for (std::size_t i = 0; i < wide.size(); ++i) values[i] = static_cast<float>(wide[i]);
  return values;
}

void ParameterStore::refresh_mirrors() {
  for (const Parameter& p : parameters_) {
    if (p.mirror != nullptr) kernels_.to_low(p.mirror, p.data, p.shape.count());
  }
}

std::size_t ParameterStore::gradient_bytes() const {
  std::size_t bytes = 0;
  for (const Parameter& p : parameters_) {
    if (p.trainable && p.gradient != nullptr) bytes += p.size_bytes();
  }
  return bytes;
}

std::int64_t ParameterStore::trainable_count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_) {
    if (p.trainable) n += p.shape.count();
  }
  return n;
}

}  // namespace ddprun::engine
