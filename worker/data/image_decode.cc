#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdio>  // before jpeglib.h, which needs FILE
#include <cstring>

#include <jerror.h>
#include <jpeglib.h>

#include "worker/data/image.h"

namespace ddprun::data {
namespace {

constexpr std::int64_t kMaxSide = 65500;  // JPEG's own limit; a header that asks for more memory is not believed

struct JpegFailure {
  jpeg_error_mgr manager;  // first: libjpeg hands back a pointer to it
  std::jmp_buf out;
  char message[JMSG_LENGTH_MAX];
  bool ended_early;
};

[[noreturn]] void on_jpeg_error(j_common_ptr info) {
  auto* failure = reinterpret_cast<JpegFailure*>(info->err);
  (*info->err->format_message)(info, failure->message);
  std::longjmp(failure->out, 1);
}

void on_jpeg_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  auto* failure = reinterpret_cast<JpegFailure*>(info->err);
  const int code = info->err->msg_code;
  if (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER) failure->ended_early = true;
}

// The C part: no object with a destructor lives in a function that longjmp leaves. `decompress` is destroyed by the
// caller.
bool read_jpeg_header(jpeg_decompress_struct* d, JpegFailure* failure, std::span<const std::byte> bytes) {
  if (setjmp(failure->out) != 0) return false;
  jpeg_create_decompress(d);
  jpeg_mem_src(d, reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<unsigned long>(bytes.size()));
  jpeg_read_header(d, TRUE);
  return true;
}

bool start_jpeg(jpeg_decompress_struct* d, JpegFailure* failure, JDIMENSION* left, JDIMENSION* columns) {
  if (setjmp(failure->out) != 0) return false;
  jpeg_start_decompress(d);
  if (d->out_color_space != JCS_CMYK) jpeg_crop_scanline(d, left, columns);
  return true;
}

bool read_jpeg_rows(jpeg_decompress_struct* d, JpegFailure* failure, JDIMENSION top, JDIMENSION rows, std::uint8_t* out,
                    std::size_t stride) {
  if (setjmp(failure->out) != 0) return false;
  if (top > 0) jpeg_skip_scanlines(d, top);
  for (JDIMENSION y = 0; y < rows; ++y) {
    JSAMPROW row = out + y * stride;
    jpeg_read_scanlines(d, &row, 1);
  }
  return true;
}

// Adobe's CMYK is stored inverted: 255 is no ink.
void cmyk_to_rgbx(std::vector<std::uint8_t>& pixels) {
  for (std::size_t i = 0; i + 3 < pixels.size(); i += 4) {
    const unsigned black = pixels[i + 3];
    for (std::size_t c = 0; c < 3; ++c) pixels[i + c] = static_cast<std::uint8_t>(pixels[i + c] * black / 255);
  }
}

struct JpegOwner {
  jpeg_decompress_struct decompress = {};
  JpegFailure failure = {};
  JpegOwner() {
    decompress.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = on_jpeg_error;
    failure.manager.emit_message = on_jpeg_message;
  }
  ~JpegOwner() { jpeg_destroy_decompress(&decompress); }
  JpegOwner(const JpegOwner&) = delete;
  JpegOwner& operator=(const JpegOwner&) = delete;
};

Result<Pixels> decode_jpeg(std::span<const std::byte> bytes, const ChooseBox& choose, std::int64_t target, bool exact) {
  JpegOwner owner;
  jpeg_decompress_struct& d = owner.decompress;
  const auto broken = [&owner] {
    return Error(Errc::malformed, fmt::format("broken JPEG ({})", owner.failure.message));
  };
  if (!read_jpeg_header(&d, &owner.failure, bytes)) return broken();
  const auto width = static_cast<std::int64_t>(d.image_width);
  const auto height = static_cast<std::int64_t>(d.image_height);
  const Box wanted = choose(width, height);
  const bool cmyk = d.jpeg_color_space == JCS_CMYK || d.jpeg_color_space == JCS_YCCK;
  d.out_color_space = cmyk ? JCS_CMYK : JCS_EXT_RGBX;
  d.scale_num = 8;
  d.scale_denom = 8;
  // Only powers of two have a fast transform in libjpeg-turbo.
  while (!exact && d.scale_num > 1 && std::min(wanted.width, wanted.height) * d.scale_num / 16 >= target) {
    d.scale_num /= 2;
  }
  const double scale = d.scale_num / 8.0;
  // Beyond the box: what smoothing reaches, and two pixels for the decoder's own smoothing of colours.
  const double reach =
      wanted.hard_edges ? 0 : std::ceil(std::max(wanted.width, wanted.height) * scale / static_cast<double>(target));
  const double margin = 2 + reach;
  auto left = static_cast<JDIMENSION>(std::max(0.0, std::floor(wanted.x * scale) - margin));
  JDIMENSION columns = 0;
  const auto scaled_width = static_cast<double>((width * d.scale_num + 7) / 8);
  const auto scaled_height = static_cast<double>((height * d.scale_num + 7) / 8);
  if (cmyk) {
    left = 0;
    columns = static_cast<JDIMENSION>(scaled_width);
  } else {
    const double right = std::min(scaled_width, std::ceil((wanted.x + wanted.width) * scale) + margin);
    columns = static_cast<JDIMENSION>(right) - left;
  }
  const auto top = static_cast<JDIMENSION>(std::max(0.0, std::floor(wanted.y * scale) - margin));
  const double bottom = std::min(scaled_height, std::ceil((wanted.y + wanted.height) * scale) + margin);
  if (!start_jpeg(&d, &owner.failure, &left, &columns)) return broken();
  Pixels pixels;
  pixels.width = static_cast<std::int64_t>(columns);
  pixels.height = static_cast<std::int64_t>(bottom) - static_cast<std::int64_t>(top);
  pixels.rgbx.resize(static_cast<std::size_t>(pixels.width * pixels.height) * 4);
  if (!read_jpeg_rows(&d, &owner.failure, top, static_cast<JDIMENSION>(pixels.height), pixels.rgbx.data(),
                      static_cast<std::size_t>(pixels.width) * 4)) {
    return broken();
  }
  if (owner.failure.ended_early) return Error(Errc::malformed, "the JPEG data end too early");
  if (cmyk) cmyk_to_rgbx(pixels.rgbx);
  pixels.box = Box{wanted.x * scale - left, wanted.y * scale - top, wanted.width * scale, wanted.height * scale,
                   wanted.hard_edges};
  return pixels;
}

Result<Pixels> decode_png(std::span<const std::byte> bytes, const ChooseBox& choose) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  const auto broken = [&image] {
    Error error(Errc::malformed, fmt::format("broken PNG ({})", image.message));
    png_image_free(&image);
    return error;
  };
  if (png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()) == 0) return broken();
  if (image.width > kMaxSide || image.height > kMaxSide) {
    png_image_free(&image);
    return Error(Errc::malformed, "a PNG of more than 65500 pixels a side");
  }
  image.format = PNG_FORMAT_RGBA;
  Pixels pixels;
  pixels.width = image.width;
  pixels.height = image.height;
  pixels.rgbx.resize(PNG_IMAGE_SIZE(image));
  if (png_image_finish_read(&image, nullptr, pixels.rgbx.data(), 0, nullptr) == 0) return broken();
  if (PNG_IMAGE_FAILED(image)) return broken();
  pixels.box = choose(pixels.width, pixels.height);
  return pixels;
}

}  // namespace

Result<Pixels> decode_image(std::span<const std::byte> bytes, const ChooseBox& choose, std::int64_t target,
                            bool exact) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  if (bytes.size() >= 3 && p[0] == 0xff && p[1] == 0xd8 && p[2] == 0xff) {
    return decode_jpeg(bytes, choose, target, exact);
  }
  if (bytes.size() >= 8 && std::memcmp(p, "\x89PNG\r\n\x1a\n", 8) == 0) return decode_png(bytes, choose);
  return Error(Errc::malformed, bytes.empty() ? "an empty file" : "neither JPEG nor PNG");
}

}  // namespace ddprun::data
