#include "worker/data/npy.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "worker/data/formats.h"
#include "worker/data/memory_dataset.h"

namespace ddprun::data {
namespace {

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// The text after "'key':" in the header's dictionary, without leading spaces.
std::string_view entry(std::string_view header, std::string_view key) {
  const std::size_t at = header.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + key.size() + 3);
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  return rest;
}

std::size_t size_of_type(std::string_view type) {
  constexpr std::array<std::string_view, 9> kTypes = {"f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "b1"};
  for (const std::string_view known : kTypes) {
    if (type == known) return static_cast<std::size_t>(type[1] - '0');
  }
  return 0;
}

}  // namespace

double NpyArray::at(std::int64_t i) const {
  const std::byte* p = data + static_cast<std::size_t>(i) * size_of_type(type);
  if (type == "f4") return load<float>(p);
  if (type == "f8") return load<double>(p);
  if (type == "i1") return load<std::int8_t>(p);
  if (type == "i2") return load<std::int16_t>(p);
  if (type == "i4") return load<std::int32_t>(p);
  if (type == "i8") return static_cast<double>(load<std::int64_t>(p));
  if (type == "u2") return load<std::uint16_t>(p);
  return load<std::uint8_t>(p);  // u1, b1
}

Result<NpyArray> open_npy_array(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file) return std::move(file).error();
  const std::span<const std::byte> bytes = (*file)->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.substr(0, 6) != std::string_view("\x93NUMPY", 6) || text.size() < 12) {
    return Error(Errc::malformed, path + ": not a .npy file");
  }
  const auto version = static_cast<unsigned>(text[6]);
  const bool wide = version >= 2;  // version 1 has a u16 length, 2 and 3 a u32
  const std::size_t start = wide ? 12 : 10;
  const std::size_t length = wide ? load<std::uint32_t>(bytes.data() + 8) : load<std::uint16_t>(bytes.data() + 8);
  if (version < 1 || version > 3 || length > text.size() - start) {
    return Error(Errc::malformed, fmt::format("{}: damaged .npy header (version {})", path, version));
  }
  const std::string_view header = text.substr(start, length);
  NpyArray array;
  array.file = *file;
  const std::string_view descr = entry(header, "descr");
  if (descr.size() < 5 || descr[0] != '\'' || descr.find('\'', 1) != 4) {
    return Error(Errc::invalid_argument, path + ": .npy element type is not a plain number");
  }
  array.type = std::string(descr.substr(2, 2));
  const std::size_t element = size_of_type(array.type);
  if (element == 0 || (descr[1] == '>' && element > 1)) {
    return Error(Errc::invalid_argument, fmt::format("{}: .npy element type '{}' is not read (f4 f8 i1 i2 i4 i8 u1 "
                                                     "u2, little endian)",
                                                     path, descr.substr(1, 3)));
  }
  if (entry(header, "fortran_order").substr(0, 5) != "False") {
    return Error(Errc::invalid_argument, path + ": Fortran order; save it with numpy.ascontiguousarray");
  }
  std::string_view shape = entry(header, "shape");
  if (shape.empty() || shape[0] != '(') return Error(Errc::malformed, path + ": .npy header without a shape");
  shape.remove_prefix(1);
  array.count = 1;
  while (!shape.empty() && shape[0] != ')') {
    if (shape[0] == ',' || shape[0] == ' ') {
      shape.remove_prefix(1);
      continue;
    }
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), size);
    if (error != std::errc() || size < 0 || (size > 0 && array.count > (std::int64_t{1} << 44) / size)) {
      return Error(Errc::malformed, path + ": damaged shape in the .npy header");
    }
    shape.remove_prefix(static_cast<std::size_t>(end - shape.data()));
    array.shape.push_back(size);
    array.count *= size;
  }
  const std::size_t have = bytes.size() - start - length;
  if (have != static_cast<std::size_t>(array.count) * element) {
    return Error(Errc::malformed, fmt::format("{}: {} bytes of data, {} expected by its header", path, have,
                                              static_cast<std::size_t>(array.count) * element));
  }
  array.data = bytes.data() + start + length;
  return array;
}

Result<std::unique_ptr<Dataset>> open_npy(const DatasetOptions& options) {
  if (options.paths.targets.empty() && !options.unlabeled) {
    return Error(Errc::invalid_argument,
                 options.paths.inputs + ": npy data are two files: {inputs: X.npy, targets: Y.npy}");
  }
  auto inputs = open_npy_array(options.paths.inputs);
  if (!inputs) return std::move(inputs).error();
  Result<NpyArray> targets = NpyArray();
  if (options.unlabeled) {
    targets->shape = {inputs->shape.empty() ? 0 : inputs->shape[0]};
  } else {
    targets = open_npy_array(options.paths.targets);
  }
  if (!targets) return std::move(targets).error();
  if (inputs->shape.size() < 2) {
    return Error(Errc::invalid_argument, options.paths.inputs + ": needs at least two dimensions (samples first)");
  }
  if (targets->shape.empty() || targets->shape[0] != inputs->shape[0]) {
    return Error(Errc::invalid_argument,
                 fmt::format("{} has {} samples, but {} has {}", options.paths.inputs, inputs->shape[0],
                             options.paths.targets, targets->shape.empty() ? 0 : targets->shape[0]));
  }
  MemorySamples samples;
  samples.input_name = options.paths.inputs;
  samples.target_name = options.paths.targets;
  samples.count = inputs->shape[0];
  samples.input_shape.assign(inputs->shape.begin() + 1, inputs->shape.end());
  samples.target_shape.assign(targets->shape.begin() + 1, targets->shape.end());
  if (options.target == TargetKind::values && samples.target_shape.empty()) samples.target_shape = {1};
  if (options.target == TargetKind::classes && samples.target_shape == std::vector<std::int64_t>{1}) {
    samples.target_shape.clear();
  }
  // Bytes of images become 0..1, as torchvision's ToTensor makes them; in a table of features a byte is a number.
  const bool images = inputs->shape.size() == 3 || inputs->shape.size() == 4;
  if (inputs->type == "u1" && images) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(inputs->data);
    samples.byte_inputs.assign(from, from + inputs->count);
  } else {
    samples.float_inputs.resize(static_cast<std::size_t>(inputs->count));
    for (std::int64_t i = 0; i < inputs->count; ++i) {
      samples.float_inputs[static_cast<std::size_t>(i)] = static_cast<float>(inputs->at(i));
    }
  }
  samples.targets.resize(static_cast<std::size_t>(options.unlabeled ? inputs->shape[0] : targets->count));
  for (std::int64_t i = 0; i < targets->count; ++i) samples.targets[static_cast<std::size_t>(i)] = targets->at(i);
  return make_memory_dataset(std::move(samples), options);
}

}  // namespace ddprun::data
