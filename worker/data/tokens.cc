#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "worker/base/file_bytes.h"
#include "worker/data/formats.h"

namespace ddprun::data {
namespace {

constexpr std::int32_t kLlmcMagic = 20240520;      // llm.c's dataloader.h
constexpr std::int32_t kLlmcWideMagic = 20240801;  // its Llama-3 files: tokens of 4 bytes
constexpr std::size_t kLlmcHeader = 256 * sizeof(std::int32_t);

// Sample i: inputs are tokens [iT, iT+T), targets [iT+1, iT+T+1). The file stays mapped; nothing is read ahead.
class TokenDataset final : public Dataset {
 public:
  TokenDataset(std::shared_ptr<const MappedFile> file, std::size_t offset, std::int64_t tokens,
               const DatasetOptions& options)
      : file_(std::move(file)), data_(file_->bytes().data() + offset), length_(options.sequence_length) {
    spec_.input_shape = {length_};
    spec_.input_type = ElementType::i32;
    spec_.target_shape = {length_};
    spec_.classes = options.classes > 0 ? options.classes : 65536;
    size_ = (tokens - 1) / length_;
  }

  std::int64_t size() const override { return size_; }
  const SampleSpec& spec() const override { return spec_; }

  Result<void> read(const SampleKey& key, std::byte* input, std::byte* target) const override {
    const std::byte* from = data_ + static_cast<std::size_t>(key.index * length_) * 2;
    auto* in = reinterpret_cast<std::int32_t*>(input);
    auto* out = reinterpret_cast<std::int32_t*>(target);
    for (std::int64_t i = 0; i <= length_; ++i) {
      std::uint16_t token = 0;
      std::memcpy(&token, from + 2 * i, 2);
      if (token >= spec_.classes) {
        return Error(Errc::invalid_argument, fmt::format("{}: token {} at position {} is outside the vocabulary of {}",
                                                         file_->path(), token, key.index * length_ + i, spec_.classes));
      }
      if (i < length_) in[i] = token;
      if (i > 0) out[i - 1] = token;
    }
    return {};
  }

  std::string name_of(std::int64_t index) const override {
    return fmt::format("{} tokens {}..{}", file_->path(), index * length_, (index + 1) * length_);
  }

 private:
  std::shared_ptr<const MappedFile> file_;
  const std::byte* data_;
  std::int64_t length_;
  std::int64_t size_ = 0;
  SampleSpec spec_;
};

// What is mistaken for a token file, by its first bytes; "" if nothing is. Two-byte tokens that all look like text do
// not happen: 64 random bytes are all printable once in 10^27 files, and tokens of single bytes have a zero in each.
std::string_view mistaken_for_tokens(std::span<const std::byte> bytes) {
  constexpr std::size_t kEnough = 64, kLook = 4096;
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kLook));
  if (head.starts_with("\x93NUMPY")) return "a .npy file; write its array with .astype('<u2').tofile(...)";
  if (head.starts_with("\x1f\x8b")) return "gzip; unpack it first";
  const auto is_text = [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return (u >= 0x20 && u < 0x7f) || u == '\n' || u == '\r' || u == '\t';
  };
  if (head.size() >= kEnough && std::all_of(head.begin(), head.end(), is_text) &&
      head.find_first_of(" \n") != std::string_view::npos) {
    return "text; make tokens of it with 'trainer tokenize'";
  }
  return "";
}

// 4 or 8 if these bytes are tokens of that width by their look, else 2. The upper halves of wide numbers are 0, or for
// large vocabularies (to 2^18) up to 3 at times; the lower ones are not. 2-byte tokens may well be mostly 0 (padding),
// but not at every second place with a quarter of the others above all of these.
std::size_t token_width(std::span<const std::byte> bytes) {
  constexpr std::size_t kEnough = 64, kLook = 4096;
  constexpr std::uint16_t kLargestUpper = 3;
  std::vector<std::uint16_t> words(std::min(bytes.size() / 2, kLook));
  if (words.size() < kEnough) return 2;
  std::memcpy(words.data(), bytes.data(), 2 * words.size());
  const auto looks_like = [&words](std::size_t width) {
    const std::size_t step = width / 2, numbers = words.size() / step;
    std::uint16_t largest_upper = 0;
    std::size_t zero_uppers = 0, above = 0;
    for (std::size_t i = 0; i < numbers; ++i) {
      const std::uint16_t upper = words[i * step + 1];
      largest_upper = std::max(largest_upper, upper);
      zero_uppers += upper == 0 ? 1 : 0;
      for (std::size_t k = 2; k < step; ++k) {
        if (words[i * step + k] != 0) return false;
      }
    }
    for (std::size_t i = 0; i < numbers; ++i) above += words[i * step] > largest_upper ? 1 : 0;
    return largest_upper <= kLargestUpper && 2 * zero_uppers >= numbers && 4 * above >= numbers;
  };
  return looks_like(8) ? 8 : looks_like(4) ? 4 : 2;
}

Error wide_tokens(const std::string& path, std::string_view look, std::string_view unless = "") {
  return Error(Errc::malformed,
               fmt::format("{}: {}; only 2-byte tokens (uint16) are read: write them with .astype('<u2').tofile(...), "
                           "if the vocabulary has at most 65536{}",
                           path, look, unless));
}

// Only for bare files: llm.c's header names the type, so a file that has it is not guessed about.
Result<void> check_width(const std::string& path, std::span<const std::byte> bytes) {
  const std::size_t width = token_width(bytes);
  if (width == 2) return {};
  const std::string_view look = width == 8 ? "looks like 8-byte tokens (int64), since three of four 2-byte values are 0"
                                           : "looks like 4-byte tokens (uint32), since every second 2-byte value is 0";
  return wide_tokens(path, look,
                     fmt::format(". If they are 2-byte tokens nevertheless, put llm.c's header before them: 256 int32, "
                                 "which begin {}, 1, number of tokens",
                                 kLlmcMagic));
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_tokens(const DatasetOptions& options) {
  const std::string& path = options.paths.inputs;
  auto file = MappedFile::open(path);
  if (!file) return std::move(file).error();
  const std::span<const std::byte> bytes = (*file)->bytes();
  if (const std::string_view other = mistaken_for_tokens(bytes); !other.empty()) {
    return Error(Errc::malformed, fmt::format("{}: is no token file but {}", path, other));
  }
  std::size_t offset = 0;
  std::int32_t head[3] = {};
  if (bytes.size() >= sizeof(head)) std::memcpy(head, bytes.data(), sizeof(head));
  auto tokens = static_cast<std::int64_t>(bytes.size() / 2);
  if (head[0] == kLlmcWideMagic) {
    return wide_tokens(path, "an llm.c token file of magic 20240801 (Llama-3) has 4-byte tokens (uint32)");
  }
  if (head[0] == kLlmcMagic) {
    if (head[1] != 1) {
      return Error(Errc::malformed,
                   fmt::format("{}: llm.c token file of version {}; version 1 is read", path, head[1]));
    }
    offset = kLlmcHeader;
    tokens = head[2];
    if (bytes.size() < kLlmcHeader || tokens < 0 ||
        bytes.size() - kLlmcHeader != 2 * static_cast<std::size_t>(tokens)) {
      return Error(Errc::malformed, fmt::format("{}: {} bytes, but its header promises {} tokens of 2 bytes", path,
                                                bytes.size(), tokens));
    }
  } else if (bytes.size() % 2 != 0) {
    return Error(Errc::malformed, fmt::format("{}: {} bytes is no whole number of 2-byte tokens", path, bytes.size()));
  } else {
    auto checked = check_width(path, bytes);
    if (!checked) return std::move(checked).error();
  }
  if (tokens < options.sequence_length + 1) {
    return Error(Errc::invalid_argument,
                 fmt::format("{}: {} tokens; a sample of data.sequence_length {} needs {}", path, tokens,
                             options.sequence_length, options.sequence_length + 1));
  }
  return std::unique_ptr<Dataset>(std::make_unique<TokenDataset>(std::move(*file), offset, tokens, options));
}

}  // namespace ddprun::data
