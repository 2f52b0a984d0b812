#include "worker/data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "worker/base/file_bytes.h"
#include "worker/data/split_words.h"

namespace ddprun::data {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr std::size_t kMaxVocabularyFile = std::size_t{256} << 20;
constexpr std::size_t kMaxCache = 1 << 20;

// GPT-2 writes the 256 bytes as printable characters: those of Latin-1 that print stand for themselves, the others get
// code points from 256 on in order.
std::unordered_map<std::uint32_t, char> printable_alphabet() {
  std::unordered_map<std::uint32_t, char> bytes;
  std::uint32_t next = 256;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool prints = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    bytes[prints ? b : next++] = static_cast<char>(b);
  }
  return bytes;
}

std::optional<std::string> from_printable(const std::string& text,
                                          const std::unordered_map<std::uint32_t, char>& alphabet) {
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    const auto b = static_cast<unsigned char>(text[at]);
    std::uint32_t c = b;
    std::size_t size = 1;
    if (b >= 0xc2 && b < 0xe0 && at + 1 < text.size()) {  // the alphabet ends below 0x800
      c = (b & 0x1fU) << 6 | (static_cast<unsigned char>(text[at + 1]) & 0x3fU);
      size = 2;
    }
    const auto found = alphabet.find(c);
    if (found == alphabet.end()) return std::nullopt;
    bytes.push_back(found->second);
    at += size;
  }
  return bytes;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    std::uint32_t value = 0;
    if (c >= 'A' && c <= 'Z')
      value = static_cast<std::uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      value = static_cast<std::uint32_t>(c - 'a' + 26);
    else if (c >= '0' && c <= '9')
      value = static_cast<std::uint32_t>(c - '0' + 52);
    else if (c == '+')
      value = 62;
    else if (c == '/')
      value = 63;
    else if (c == '=')
      break;
    else
      return std::nullopt;
    bits = bits << 6 | value;
    have += 6;
    if (have >= 8) {
      have -= 8;
      bytes.push_back(static_cast<char>(bits >> have & 0xff));
    }
  }
  return bytes;
}

}  // namespace

Tokenizer Tokenizer::bytes() {
  Tokenizer tokenizer;
  tokenizer.bytes_only_ = true;
  tokenizer.size_ = 256;
  return tokenizer;
}

Result<Tokenizer> Tokenizer::from_file(const std::string& path) {
  auto raw = read_file(path, kMaxVocabularyFile);
  if (!raw) return std::move(raw).error();
  const std::string_view text(reinterpret_cast<const char*>(raw->data()), raw->size());
  Tokenizer tokenizer;
  const auto add = [&tokenizer](const std::string& bytes, std::int64_t id) {
    if (id < 0 || id > std::numeric_limits<std::uint16_t>::max()) return false;
    tokenizer.size_ = std::max(tokenizer.size_, id + 1);
    if (bytes == kEndOfText) {
      tokenizer.end_of_text_ = static_cast<std::uint16_t>(id);
    } else {
      tokenizer.ids_[bytes] = static_cast<std::uint16_t>(id);
    }
    tokenizer.texts_[static_cast<std::uint16_t>(id)] = bytes;
    return true;
  };
  const auto bad = [&path](const std::string& what) { return Error(Errc::malformed, path + ": " + what); };
  if (!text.empty() && text.front() == '{') {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return bad("not a JSON object of tokens");
    const auto alphabet = printable_alphabet();
    for (const auto& [token, id] : json.items()) {
      const auto plain = token == kEndOfText ? std::optional<std::string>(token) : from_printable(token, alphabet);
      if (!plain || !id.is_number_integer() || !add(*plain, id.get<std::int64_t>())) {
        return bad(fmt::format("token '{}' cannot be used (ids up to 65535, GPT-2's alphabet)", token));
      }
    }
  } else {
    std::size_t at = 0;
    for (std::int64_t line = 1; at < text.size(); ++line) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view row = text.substr(at, end - at);
      at = end + 1;
      if (row.empty()) continue;
      const std::size_t space = row.find(' ');
      const auto plain = from_base64(row.substr(0, space));
      std::int64_t id = -1;
      if (space != std::string_view::npos) {
        const auto rank = row.substr(space + 1);
        if (std::from_chars(rank.data(), rank.data() + rank.size(), id).ec != std::errc()) id = -1;
      }
      if (!plain || plain->empty() || !add(*plain, id)) {
        return Error(Errc::malformed, fmt::format("{}:{}: not 'base64 rank' with a rank up to 65535", path, line));
      }
    }
    // tiktoken keeps special tokens out of the file; GPT-2's only one follows the last rank.
    if (tokenizer.size_ == 50256) add(kEndOfText, 50256);
  }
  for (int b = 0; b < 256; ++b) {
    if (!tokenizer.ids_.contains(std::string(1, static_cast<char>(b)))) {
      return bad(fmt::format("no token for byte 0x{:02x}: not a byte-level vocabulary", b));
    }
  }
  return tokenizer;
}

void Tokenizer::encode(std::string_view text, std::vector<std::uint16_t>& out) {
  if (bytes_only_) {
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return;
  }
  WordSplitter words(text);
  for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
    const auto known = cache_.find(word);
    if (known != cache_.end()) {
      out.insert(out.end(), known->second.begin(), known->second.end());
      continue;
    }
    std::vector<std::uint16_t> tokens;
    encode_word(word, tokens);
    out.insert(out.end(), tokens.begin(), tokens.end());
    if (cache_.size() < kMaxCache && word.size() < 64) cache_.emplace(std::string(word), std::move(tokens));
  }
}

// Starts with single bytes and joins the neighbours whose joint token has the lowest id, until none has one.
void Tokenizer::encode_word(std::string_view word, std::vector<std::uint16_t>& out) {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::size_t> starts(word.size() + 1);
  for (std::size_t i = 0; i <= word.size(); ++i) starts[i] = i;
  const auto id_between = [&](std::size_t part, std::size_t parts) -> std::uint32_t {
    if (part + parts >= starts.size()) return kNone;
    const auto found = ids_.find(word.substr(starts[part], starts[part + parts] - starts[part]));
    return found == ids_.end() ? kNone : found->second;
  };
  std::vector<std::uint32_t> joint;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) joint.push_back(id_between(i, 2));
  while (!joint.empty()) {
    const auto lowest = std::min_element(joint.begin(), joint.end());
    if (*lowest == kNone) break;
    const auto at = lowest - joint.begin();
    starts.erase(starts.begin() + at + 1);
    joint.erase(joint.begin() + at + (at + 1 < static_cast<std::ptrdiff_t>(joint.size()) ? 1 : 0));
    const auto here = static_cast<std::size_t>(at);
    if (here < joint.size()) joint[here] = id_between(here, 2);
    if (here > 0) joint[here - 1] = id_between(here - 1, 2);
  }
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) out.push_back(static_cast<std::uint16_t>(id_between(i, 1)));
}

std::string Tokenizer::decode(std::uint16_t token) const {
  if (bytes_only_) return token < 256 ? std::string(1, static_cast<char>(token)) : std::string();
  const auto found = texts_.find(token);
  return found == texts_.end() ? std::string() : found->second;
}

}  // namespace ddprun::data
