#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "worker/tensor/dtype.h"

namespace ddprun::engine {

using ddprun::DType;
using ddprun::name_of;
using ddprun::size_of;

// Extents of a contiguous row-major tensor, at most 5 of them. A scalar has none and one element.
class Shape {
 public:
  static constexpr std::size_t kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);
  explicit Shape(std::span<const std::int64_t> extents);

  std::size_t rank() const { return rank_; }
  std::int64_t operator[](std::size_t i) const { return extents_[i]; }
  std::int64_t back() const { return extents_[rank_ - 1]; }
  std::int64_t count() const;  // elements
  std::span<const std::int64_t> extents() const { return {extents_.data(), rank_}; }
  std::string to_string() const;  // "[64, 10]"
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  std::size_t rank_ = 0;
};

}  // namespace ddprun::engine
