#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "worker/base/file_bytes.h"
#include "worker/data/formats.h"

namespace ddprun::data {
namespace {

constexpr std::int32_t kLlmcMagic = 20240520;  // llm.c's dataloader.h
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
  }
  if (tokens < options.sequence_length + 1) {
    return Error(Errc::invalid_argument,
                 fmt::format("{}: {} tokens; a sample of data.sequence_length {} needs {}", path, tokens,
                             options.sequence_length, options.sequence_length + 1));
  }
  return std::unique_ptr<Dataset>(std::make_unique<TokenDataset>(std::move(*file), offset, tokens, options));
}

}  // namespace ddprun::data
