#pragma once

#include <cstddef>
#include <cstdint>

// The element types of tensors, for the engine and for the collectives.
namespace ddprun {

enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64 };

// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::bf16:
    case DType::f16:
      return 2;
  }
  return 0;
}

// "f32"
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
  }
  return "unknown dtype";
}

}  // namespace ddprun
