#include "worker/data/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include <array>
#include <cstdio>

#include <jpeglib.h>

#include "worker/data/sample_random.h"

namespace ddprun::data {
namespace {

using ::testing::HasSubstr;

// A ramp: red grows to the right, green down.
std::vector<std::uint8_t> ramp(int width, int height, int channels) {
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const int values[4] = {x * 255 / width, y * 255 / height, 128, 255};
      for (int c = 0; c < channels; ++c) pixels.push_back(static_cast<std::uint8_t>(values[c]));
    }
  }
  return pixels;
}

std::vector<std::byte> jpeg(int width, int height) {
  jpeg_compress_struct c = {};
  jpeg_error_mgr errors;
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&c, &out, &size);
  c.image_width = static_cast<JDIMENSION>(width);
  c.image_height = static_cast<JDIMENSION>(height);
  c.input_components = 3;
  c.in_color_space = JCS_RGB;
  jpeg_set_defaults(&c);
  jpeg_set_quality(&c, 95, TRUE);
  jpeg_start_compress(&c, TRUE);
  std::vector<std::uint8_t> pixels = ramp(width, height, 3);
  while (c.next_scanline < c.image_height) {
    JSAMPROW row = pixels.data() + static_cast<std::size_t>(c.next_scanline) * static_cast<std::size_t>(width) * 3;
    jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  const auto* bytes = reinterpret_cast<const std::byte*>(out);
  std::vector<std::byte> result(bytes, bytes + size);
  std::free(out);
  return result;
}

std::vector<std::byte> png(int width, int height) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  const std::vector<std::uint8_t> pixels = ramp(width, height, 3);
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr);
  std::vector<std::byte> result(size);
  png_image_write_to_memory(&image, result.data(), &size, 0, pixels.data(), 0, nullptr);
  result.resize(size);
  return result;
}

constexpr std::array<float, 3> kMean{0, 0, 0};
constexpr std::array<float, 3> kStd{1, 1, 1};

std::vector<float> resized(const Pixels& pixels, std::int64_t size, bool mirror = false) {
  std::vector<float> out(static_cast<std::size_t>(size * size * 3));
  resize_normalise(pixels, size, mirror, kMean, kStd, out.data());
  return out;
}

// Any box of the ramp, decoded at any scale, shows the ramp's values: what is cut and where it lies agree.
TEST(DecodeImage, BoxesLieWhereTheyWereAskedFor) {
  const int width = 601, height = 403;
  SampleRandom random(SampleKey{1, 2, 3});
  for (const auto& bytes : {jpeg(width, height), png(width, height)}) {
    for (int trial = 0; trial < 60; ++trial) {
      const Box box = random_box(width, height, random);
      for (const bool exact : {true, false}) {
        auto pixels = decode_image(
            bytes,
            [&box](std::int64_t w, std::int64_t h) {
              EXPECT_EQ(w, 601);
              EXPECT_EQ(h, 403);
              return box;
            },
            32, exact);
        ASSERT_TRUE(pixels) << pixels.error().message();
        const std::vector<float> out = resized(*pixels, 32);
        for (const int at : {3, 16, 28}) {
          const double red = (box.x + box.width * (at + 0.5) / 32) / width;
          const double green = (box.y + box.height * (at + 0.5) / 32) / height;
          EXPECT_NEAR(out[static_cast<std::size_t>((16 * 32 + at) * 3)], red, 0.025) << box.x << " " << box.width;
          EXPECT_NEAR(out[static_cast<std::size_t>((at * 32 + 16) * 3 + 1)], green, 0.025)
              << box.y << " " << box.height;
        }
      }
    }
  }
}

TEST(DecodeImage, MirrorTurnsLeftAndRight) {
  auto pixels = decode_image(
      png(64, 64), [](auto w, auto h) { return center_box(w, h, 32); }, 32, true);
  ASSERT_TRUE(pixels);
  const std::vector<float> a = resized(*pixels, 32);
  const std::vector<float> b = resized(*pixels, 32, true);
  for (std::size_t x = 0; x < 32; ++x) EXPECT_EQ(a[(5 * 32 + x) * 3], b[(5 * 32 + 31 - x) * 3]);
}

// Every length of a broken file is an error or a picture, never a crash (run under AddressSanitizer).
TEST(DecodeImage, BrokenFilesAreErrors) {
  const auto choose = [](std::int64_t w, std::int64_t h) { return center_box(w, h, 16); };
  for (const auto& good : {jpeg(80, 60), png(80, 60)}) {
    for (std::size_t size = 0; size < good.size(); size += 7) {
      auto cut = decode_image(std::span(good).first(size), choose, 16, true);
      // Only the end mark (12 bytes and a checksum) may be missing from a PNG.
      EXPECT_TRUE(!cut || size + 16 > good.size()) << size << " of " << good.size();
    }
    SampleRandom random(SampleKey{7, 7, 7});
    for (int trial = 0; trial < 300; ++trial) {
      std::vector<std::byte> bad = good;
      for (int k = 0; k < 4; ++k) {
        bad[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(bad.size())))] =
            static_cast<std::byte>(random.below(256));
      }
      auto pixels = decode_image(bad, choose, 16, trial % 2 == 0);
      if (pixels) resized(*pixels, 16);
    }
  }
  EXPECT_THAT(decode_image({}, choose, 16, true).error().message(), HasSubstr("empty"));
}

TEST(RandomBox, StaysInside) {
  SampleRandom random(SampleKey{});
  for (const auto& [w, h] : {std::pair{500, 375}, {1, 1}, {3, 1000}, {1000, 3}, {224, 224}}) {
    for (int i = 0; i < 200; ++i) {
      const Box box = random_box(w, h, random);
      EXPECT_GE(box.x, 0);
      EXPECT_GE(box.y, 0);
      EXPECT_GT(box.width, 0);
      EXPECT_GT(box.height, 0);
      EXPECT_LE(box.x + box.width, w);
      EXPECT_LE(box.y + box.height, h);
    }
  }
}

TEST(CenterBox, IsTorchvisionsForImageNet) {
  // 500 x 375: resized to 341 x 256, cropped at 58 (59 rounds half to even from 58.5), 16.
  const Box box = center_box(500, 375, 224);
  EXPECT_NEAR(box.x, 58 * 500.0 / 341, 1e-9);
  EXPECT_NEAR(box.y, 16 * 375.0 / 256, 1e-9);
  EXPECT_NEAR(box.width, 224 * 500.0 / 341, 1e-9);
}

}  // namespace
}  // namespace ddprun::data
