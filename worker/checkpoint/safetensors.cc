#include "worker/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "worker/base/file_bytes.h"

namespace ddprun::checkpoint {
namespace {

struct TypeEntry {
  TensorType type;
  const char* name;
  std::size_t size;
};
constexpr std::array<TypeEntry, 10> kTypes{{{TensorType::f64, "F64", 8},
                                            {TensorType::f32, "F32", 4},
                                            {TensorType::f16, "F16", 2},
                                            {TensorType::bf16, "BF16", 2},
                                            {TensorType::i64, "I64", 8},
                                            {TensorType::i32, "I32", 4},
                                            {TensorType::i16, "I16", 2},
                                            {TensorType::i8, "I8", 1},
                                            {TensorType::u8, "U8", 1},
                                            {TensorType::boolean, "BOOL", 1}}};

constexpr std::size_t kMaxHeader = 100'000'000;  // the Python reader's own limit

using Json = nlohmann::json;

// Reads one entry; empty text: fine.
std::string read_entry(const Json& entry, std::size_t data_size, TensorView& view, std::size_t& begin,
                       std::size_t& end) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    return "needs dtype, shape and data_offsets";
  }
  const Json& offsets = entry["data_offsets"];
  if (!entry["dtype"].is_string() || !entry["shape"].is_array() || !offsets.is_array() || offsets.size() != 2 ||
      !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return "has a dtype, shape or data_offsets of the wrong kind";
  }
  const std::string type = entry["dtype"].get<std::string>();
  const auto* known =
      std::find_if(kTypes.begin(), kTypes.end(), [&type](const TypeEntry& t) { return type == t.name; });
  if (known == kTypes.end()) return "has the unknown dtype '" + type + "'";
  view.type = known->type;
  std::size_t count = 1;
  for (const Json& size : entry["shape"]) {
    if (!size.is_number_unsigned()) return "has a shape that is not sizes";
    const auto n = size.get<std::uint64_t>();
    if (n > (std::uint64_t{1} << 40) || (n != 0 && count > (std::size_t{1} << 44) / n)) return "has too large a shape";
    view.shape.push_back(static_cast<std::int64_t>(n));
    count *= n;
  }
  begin = offsets[0].get<std::uint64_t>();
  end = offsets[1].get<std::uint64_t>();
  if (begin > end || end > data_size) {
    return fmt::format("has data_offsets {}..{} in {} bytes of data", begin, end, data_size);
  }
  if (end - begin != count * known->size) {
    return fmt::format("has {} bytes, but shape and dtype need {}", end - begin, count * known->size);
  }
  return {};
}

// A zip file with a pickle inside (torch 1.6 and newer), or the pickle itself. What stands there could
// hardly be a safetensors header's length and beginning.
bool is_torch_pickle(const std::vector<std::byte>& bytes) {
  const auto at = [&bytes](std::size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  const bool zip = at(0) == 'P' && at(1) == 'K' && at(2) == 3 && at(3) == 4 && (bytes.size() == 8 || at(8) != '{');
  const bool pickle = at(0) == 0x80 && at(1) >= 2 && at(1) <= 5 && at(7) != 0;
  return zip || pickle;
}

}  // namespace

std::size_t size_of(TensorType type) { return kTypes[static_cast<std::size_t>(type)].size; }
const char* name_of(TensorType type) { return kTypes[static_cast<std::size_t>(type)].name; }

SafetensorsLayout layout_safetensors(const std::vector<TensorView>& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout;
  layout.order.resize(tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::sort(layout.order.begin(), layout.order.end(), [&tensors](std::size_t a, std::size_t b) {
    const std::size_t size_a = size_of(tensors[a].type);
    const std::size_t size_b = size_of(tensors[b].type);
    return size_a != size_b ? size_a > size_b : tensors[a].name < tensors[b].name;
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t at = 0;
  for (const std::size_t i : layout.order) {
    const TensorView& tensor = tensors[i];
    header[tensor.name] = {
        {"dtype", name_of(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string json = header.dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');
  layout.header.resize(8);
  for (std::size_t i = 0; i < 8; ++i) layout.header[i] = static_cast<char>((json.size() >> (8 * i)) & 0xff);
  layout.header += json;
  layout.total_bytes = layout.header.size() + at;
  return layout;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto bytes = read_whole(path);
  if (!bytes) return std::move(bytes).error();
  return parse(std::move(*bytes), path);
}

Result<SafetensorsFile> SafetensorsFile::parse(std::vector<std::byte> bytes, const std::string& name) {
  const auto malformed = [&name](const std::string& why) { return Error(Errc::malformed, name + ": " + why); };
  if (bytes.size() < 8) return malformed("too short for a safetensors file");
  if (is_torch_pickle(bytes)) {
    return malformed(
        "is a pickle as torch.save writes it, not a safetensors file: load it in Python and write its state_dict with "
        "safetensors.torch.save_file");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  if (length > kMaxHeader || length > bytes.size() - 8) {
    return malformed(fmt::format("a header of {} bytes does not fit {} bytes of file", length, bytes.size()));
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + 8);
  if (length == 0 || text[0] != '{') return malformed("the header is not a JSON object");
  // A duplicate name would hide one tensor behind another.
  std::vector<std::string> keys;
  bool duplicate = false;
  const auto no_duplicates = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key) keys.push_back(parsed.get<std::string>());
    return true;
  };
  const Json header = Json::parse(text, text + length, no_duplicates, /*allow_exceptions=*/false);
  if (!header.is_object()) return malformed("the header is not a JSON object");
  std::sort(keys.begin(), keys.end());
  duplicate = std::adjacent_find(keys.begin(), keys.end()) != keys.end();
  if (duplicate) return malformed("a tensor name stands twice in the header");

  SafetensorsFile file;
  file.bytes_ = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> data = std::span<const std::byte>(*file.bytes_).subspan(8 + length);
  struct Placed {
    std::size_t begin, end;
    TensorView view;
  };
  std::vector<Placed> placed;
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      if (!entry.is_object()) return malformed("__metadata__ is not an object");
      for (const auto& [k, v] : entry.items()) {
        if (!v.is_string()) return malformed("__metadata__ has a value that is not a text");
        file.metadata_[k] = v.get<std::string>();
      }
      continue;
    }
    Placed p{};
    p.view.name = key;
    const std::string wrong = read_entry(entry, data.size(), p.view, p.begin, p.end);
    if (!wrong.empty()) return malformed(fmt::format("tensor '{}' {}", key, wrong));
    p.view.bytes = data.subspan(p.begin, p.end - p.begin);
    placed.push_back(std::move(p));
  }
  std::sort(placed.begin(), placed.end(),
            [](const Placed& a, const Placed& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  std::size_t at = 0;
  for (Placed& p : placed) {
    if (p.begin != at) {
      return malformed(fmt::format("tensor '{}' begins at {}, the one before ends at {}", p.view.name, p.begin, at));
    }
    at = p.end;
    file.by_name_[p.view.name] = file.tensors_.size();
    file.tensors_.push_back(std::move(p.view));
  }
  if (at != data.size()) return malformed(fmt::format("{} bytes at the end belong to no tensor", data.size() - at));
  return file;
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace ddprun::checkpoint
