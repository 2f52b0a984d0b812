#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

// Pictures from bytes, and the geometry that torchvision's usual transforms ask for.
namespace ddprun::data {

// A rectangle in pixels; x grows to the right, y down.
struct Box {
  double x = 0, y = 0, width = 0, height = 0;
  // true: cut out, then resized (RandomResizedCrop). false: resized, then cut out (Resize, CenterCrop): pixels at the
  // edge of the result also depend on what lies just outside.
  bool hard_edges = true;
};

// Part of a picture, four bytes a pixel: red, green, blue, unused.
struct Pixels {
  std::int64_t width = 0, height = 0;
  std::vector<std::uint8_t> rgbx;
  Box box;  // where the box that was asked for lies in these pixels
};

// Which part of a picture of this size is wanted.
using ChooseBox = std::function<Box(std::int64_t width, std::int64_t height)>;

// JPEG or PNG, told apart by their first bytes (file names lie). Grey, CMYK and transparent pictures become RGB.
// `target`: pixels that the box will be reduced to. `exact` false: a JPEG whose box has at least 2, 4 or 8 times as
// many is decoded at 1/2, 1/4 or 1/8, which is much faster; only the box's rows and columns are decoded at all.
// Errors: malformed, without the file's name.
Result<Pixels> decode_image(std::span<const std::byte> bytes, const ChooseBox& choose, std::int64_t target, bool exact);

// Reduces or enlarges pixels.box to `size` x `size` with the triangle filter that PIL and torchvision call bilinear
// with antialias. out: size x size x 3 floats, channel c: (value / 255 - mean[c]) / std[c]. mirror: left and right
// change places.
void resize_normalise(const Pixels& pixels, std::int64_t size, bool mirror, std::span<const float, 3> mean,
                      std::span<const float, 3> std, float* out);

// torchvision's Resize(size * 256 / 224) and CenterCrop(size), as the box in the picture.
Box center_box(std::int64_t width, std::int64_t height, std::int64_t size);

class SampleRandom;
// torchvision's RandomResizedCrop: 8 % to 100 % of the area, sides 3:4 to 4:3.
Box random_box(std::int64_t width, std::int64_t height, SampleRandom& random);

}  // namespace ddprun::data
