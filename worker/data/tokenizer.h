#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/result.h"

namespace ddprun::data {

// Text to numbers: one a byte, or GPT-2's byte pair encoding with a vocabulary that the user brings.
class Tokenizer {
 public:
  static Tokenizer bytes();
  // GPT-2's encoder.json (tokens are written in its printable alphabet), or ranks as tiktoken writes them (a line
  // "base64 rank" each). Ids above 255 are in the order of the merges, so the ids alone say which pair is merged first.
  // Errors: not_found, malformed, invalid_argument (more than 65536 tokens; a byte without a token).
  static Result<Tokenizer> from_file(const std::string& path);

  // Appends the tokens of `text`. Any bytes are accepted, also such that are no UTF-8.
  void encode(std::string_view text, std::vector<std::uint16_t>& out);
  std::string decode(std::uint16_t token) const;  // its bytes; "" for a token that is not there
  std::int64_t size() const { return size_; }     // of the vocabulary, end of text included
  std::optional<std::uint16_t> end_of_text() const { return end_of_text_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  template <typename T>
  using Map = std::unordered_map<std::string, T, Hash, std::equal_to<>>;

  Tokenizer() = default;
  void encode_word(std::string_view word, std::vector<std::uint16_t>& out);

  bool bytes_only_ = false;
  std::int64_t size_ = 0;
  Map<std::uint16_t> ids_;
  std::unordered_map<std::uint16_t, std::string> texts_;
  Map<std::vector<std::uint16_t>> cache_;  // words seen before
  std::optional<std::uint16_t> end_of_text_;
};

}  // namespace ddprun::data
