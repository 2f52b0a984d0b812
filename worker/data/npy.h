#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/base/file_bytes.h"

namespace ddprun::data {

// One numpy array on disk, mapped. Versions 1.0 to 3.0, C order, little endian.
struct NpyArray {
  std::shared_ptr<const MappedFile> file;
  std::string type;  // "f4", "u1", ...
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::int64_t count = 0;

  double at(std::int64_t i) const;  // element i in row-major order, as double
};

// Errors: not_found; malformed (not npy, damaged header, size does not match); invalid_argument (Fortran order,
// big endian, element type that is not a number).
Result<NpyArray> open_npy_array(const std::string& path);

}  // namespace ddprun::data
