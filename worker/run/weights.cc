#include "worker/run/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "common/check.h"
#include "worker/tensor/half.h"

namespace ddprun::trainer {
namespace {

using checkpoint::TensorType;
using checkpoint::TensorView;

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

bool same_shape(const TensorView& tensor, const engine::Shape& shape) {
  const auto extents = shape.extents();
  return std::equal(tensor.shape.begin(), tensor.shape.end(), extents.begin(), extents.end());
}

bool is_float(TensorType type) {
  return type == TensorType::f64 || type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16;
}

std::vector<float> to_floats(const TensorView& tensor) {
  const std::size_t count = tensor.bytes.size() / checkpoint::size_of(tensor.type);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* p = tensor.bytes.data() + i * checkpoint::size_of(tensor.type);
    switch (tensor.type) {
      case TensorType::f32:
        std::memcpy(&values[i], p, 4);
        break;
      case TensorType::f64: {
        double v = 0;
        std::memcpy(&v, p, 8);
        values[i] = static_cast<float>(v);
        break;
      }
      case TensorType::f16:
      case TensorType::bf16: {
        std::uint16_t v = 0;
        std::memcpy(&v, p, 2);
        values[i] = tensor.type == TensorType::f16 ? f16_to_f32(v) : bf16_to_f32(v);
        break;
      }
      default:
        CHECK(false, "asked of a tensor that is_float() refuses");
    }
  }
  return values;
}

const TensorView* find_with(const std::string& prefix, const checkpoint::SafetensorsFile& file,
                            const std::string& name) {
  constexpr std::string_view kTransformer = "transformer.";
  const TensorView* tensor = file.find(prefix + name);
  if (tensor == nullptr && name.rfind(kTransformer, 0) == 0) {
    tensor = file.find(prefix + name.substr(kTransformer.size()));
  }
  return tensor;
}

// DistributedDataParallel and torch.compile put their own names in front of those of the module that they wrap. ""
// where none of them explains the file's names.
std::string wrapper_prefix(const checkpoint::SafetensorsFile& file, const engine::ParameterStore& store) {
  const auto& all = store.parameters();
  const auto wanted = std::find_if(all.begin(), all.end(), [](const auto& p) { return p.dtype != engine::DType::i64; });
  if (wanted == all.end()) return "";
  for (const char* prefix : {"", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."}) {
    if (find_with(prefix, file, wanted->name) != nullptr) return prefix;
  }
  return "";
}

// What the file has beyond what was asked for belongs to another model or optimizer.
Result<void> nothing_else(const checkpoint::SafetensorsFile& file, std::size_t wanted, const char* what,
                          const std::function<bool(const std::string&)>& known) {
  if (file.tensors().size() == wanted) return {};
  for (const TensorView& tensor : file.tensors()) {
    if (known(tensor.name)) continue;
    return Error(Errc::invalid_argument, fmt::format("has a tensor '{}' that this {} lacks", tensor.name, what));
  }
  return {};
}

}  // namespace

TensorType tensor_type(engine::DType dtype) {
  switch (dtype) {
    case engine::DType::f32:
      return TensorType::f32;
    case engine::DType::f64:
      return TensorType::f64;
    case engine::DType::bf16:
      return TensorType::bf16;
    case engine::DType::f16:
      return TensorType::f16;
    case engine::DType::i32:
      return TensorType::i32;
    case engine::DType::i64:
      return TensorType::i64;
  }
  CHECK(false, "a DType that is not in the table");
  return TensorType::f32;
}

std::string optimizer_tensor_name(const optim::StateTensor& tensor) { return tensor.kind + "." + tensor.parameter; }

Result<void> restore_model(const checkpoint::SafetensorsFile& file, engine::ParameterStore& store) {
  for (const engine::Parameter& parameter : store.parameters()) {
    const TensorView* tensor = file.find(parameter.name);
    if (tensor == nullptr) {
      return Error(Errc::invalid_argument, fmt::format("has no tensor '{}': it is of another model", parameter.name));
    }
    if (!same_shape(*tensor, parameter.shape) || tensor->type != tensor_type(parameter.dtype)) {
      return Error(Errc::invalid_argument, fmt::format("tensor '{}' is {} {}, the model has {} {}", parameter.name,
                                                       checkpoint::name_of(tensor->type), shape_text(tensor->shape),
                                                       engine::name_of(parameter.dtype), parameter.shape.to_string()));
    }
    store.write(parameter.id, tensor->bytes.data());
  }
  return nothing_else(file, store.parameters().size(), "model", [&store](const std::string& name) {
    const auto& all = store.parameters();
    return std::any_of(all.begin(), all.end(), [&name](const auto& p) { return p.name == name; });
  });
}

Result<void> restore_optimizer(const checkpoint::SafetensorsFile& file, optim::Optimizer& optimizer) {
  for (const optim::StateTensor& state : optimizer.state()) {
    const std::string name = optimizer_tensor_name(state);
    const TensorView* tensor = file.find(name);
    if (tensor == nullptr) {
      return Error(Errc::invalid_argument, fmt::format("has no tensor '{}': it is of another optimizer", name));
    }
    if (!same_shape(*tensor, state.shape) || tensor->type != tensor_type(state.dtype)) {
      return Error(Errc::invalid_argument, fmt::format("tensor '{}' does not fit this optimizer", name));
    }
    optimizer.write(state, tensor->bytes.data());
  }
  const auto wanted = optimizer.state();
  return nothing_else(file, wanted.size(), "optimizer", [&wanted](const std::string& name) {
    return std::any_of(wanted.begin(), wanted.end(),
                       [&name](const auto& state) { return optimizer_tensor_name(state) == name; });
  });
}

Result<void> load_weights(const checkpoint::SafetensorsFile& file, const std::string& path,
                          engine::ParameterStore& store) {
  const std::string prefix = wrapper_prefix(file, store);
  std::vector<std::pair<const engine::Parameter*, const TensorView*>> pairs;  // all of it, before the model has any
  for (const engine::Parameter& parameter : store.parameters()) {
    const TensorView* tensor = find_with(prefix, file, parameter.name);
    if (parameter.dtype == engine::DType::i64) {  // a counter: files of some tools lack it
      if (tensor != nullptr && tensor->type == TensorType::i64 && same_shape(*tensor, parameter.shape)) {
        pairs.emplace_back(&parameter, tensor);
      }
      continue;
    }
    if (tensor == nullptr) {
      const std::string first = file.tensors().empty() ? "none at all" : "'" + file.tensors().front().name + "' first";
      return Error(Errc::invalid_argument,
                   fmt::format("{}: has no tensor '{}{}'; it has {}", path, prefix, parameter.name, first));
    }
    if (!same_shape(*tensor, parameter.shape)) {
      return Error(Errc::invalid_argument, fmt::format("{}: tensor '{}' is {}, the model has {}", path, parameter.name,
                                                       shape_text(tensor->shape), parameter.shape.to_string()));
    }
    if (!is_float(tensor->type)) {
      return Error(Errc::invalid_argument, fmt::format("{}: tensor '{}' is of type {}", path, parameter.name,
                                                       checkpoint::name_of(tensor->type)));
    }
    pairs.emplace_back(&parameter, tensor);
  }
  for (const auto& [parameter, tensor] : pairs) {
    if (parameter->dtype == engine::DType::i64) {
      store.write(parameter->id, tensor->bytes.data());
    } else {
      store.write_f32(parameter->id, to_floats(*tensor));
    }
  }
  return {};
}

}  // namespace ddprun::trainer
