#include "worker/tensor/shape.h"

#include <algorithm>

#include "common/check.h"

namespace ddprun::engine {

Shape::Shape(std::initializer_list<std::int64_t> extents)
    : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const std::int64_t> extents) : rank_(extents.size()) {
  CHECK(extents.size() <= kMaxRank, "a shape has at most 5 extents");
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

std::int64_t Shape::count() const {
  std::int64_t n = 1;
  for (std::int64_t e : extents()) n *= e;
  return n;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (std::size_t i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(extents_[i]);
  }
  return text + "]";
}

bool operator==(const Shape& a, const Shape& b) {
  return std::equal(a.extents().begin(), a.extents().end(), b.extents().begin(), b.extents().end());
}

}  // namespace ddprun::engine
