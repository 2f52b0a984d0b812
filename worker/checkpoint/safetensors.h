#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

// The safetensors format: u64 LE header length; JSON header; raw row-major little-endian bytes. Written files load in
// the Python package and the other way round.
namespace ddprun::checkpoint {

enum class TensorType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };
std::size_t size_of(TensorType type);
const char* name_of(TensorType type);  // "F32"

struct TensorView {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::span<const std::byte> bytes;
};

// Header and the order in which the data follow it (largest alignment first, then by name, so data are aligned).
struct SafetensorsLayout {
  std::string header;              // length field, JSON, padding: the first bytes of the file
  std::vector<std::size_t> order;  // indices into `tensors`
  std::size_t total_bytes = 0;     // of the file
};
SafetensorsLayout layout_safetensors(const std::vector<TensorView>& tensors,
                                     const std::map<std::string, std::string>& metadata);

// A file read as a whole; views stay valid as long as it lives.
class SafetensorsFile {
 public:
  // Errors: not_found; malformed (short file, hole, overlap, size that does not fit shape and type, header above
  // 100 MB or not JSON), each with the file's name.
  static Result<SafetensorsFile> open(const std::string& path);
  static Result<SafetensorsFile> parse(std::vector<std::byte> bytes, const std::string& name_for_errors);

  const std::vector<TensorView>& tensors() const { return tensors_; }  // by position in the file
  const TensorView* find(const std::string& name) const;               // nullptr: not there
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::shared_ptr<const std::vector<std::byte>> bytes_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace ddprun::checkpoint
