#include "worker/data/split_words.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <memory>
#include <string>

#include "common/check.h"

namespace ddprun::data {
namespace {

// As Python's: PCRE2's own \s has U+180E and lacks U+001C to U+001F.
constexpr const char* kSpace =
    R"(\x09-\x0d\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Possessive (++) where a shorter piece could never do: no way back is kept for the characters of a run.
std::string pattern_text() {
  return fmt::format(
      R"('(?:[stmd]|re|ve|ll)| ?\p{{L}}++| ?\p{{N}}++| ?[^{0}\p{{L}}\p{{N}}]++|[{0}]+(?![^{0}])|[{0}]++)", kSpace);
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

struct Pattern {
  std::unique_ptr<pcre2_code, FreeCode> code;
  bool is_machine_code = false;  // PCRE2 has no JIT for every processor
};

const Pattern& pattern() {
  static const Pattern made = [] {
    const std::string text = pattern_text();
    int error = 0;
    PCRE2_SIZE at = 0;
    Pattern p;
    p.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_ANCHORED,
                               &error, &at, nullptr));
    CHECK(p.code != nullptr, "GPT-2's pattern compiles");
    p.is_machine_code = pcre2_jit_compile(p.code.get(), PCRE2_JIT_COMPLETE) == 0;
    return p;
  }();
  return made;
}

// Bytes of the character beyond ASCII that `text` begins with; 0: it is no UTF-8.
std::size_t utf8_size(std::string_view text) {
  const auto byte = [text](std::size_t i) -> unsigned { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t size = first < 0x80   ? 1
                           : first < 0xc2 ? 0
                           : first < 0xe0 ? 2
                           : first < 0xf0 ? 3
                           : first < 0xf5 ? 4
                                          : 0;
  if (size > text.size()) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than need be, surrogates, beyond U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f)) return 0;
  if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) return 0;
  return size;
}

// The text with each byte that is no UTF-8 replaced by a sign of one byte; empty: it is good as it is.
std::string with_signs(std::string_view text) {
  constexpr char kSign = '\x01';
  std::string good;
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const std::size_t size = utf8_size(text.substr(at));
    if (size == 0) {
      if (good.empty()) good = text;
      good[at] = kSign;
    }
    at += size == 0 ? 1 : size;
  }
  return good;
}

}  // namespace

struct WordSplitter::State {
  std::string repaired;  // see with_signs()
  PCRE2_SPTR subject;
  std::unique_ptr<pcre2_match_data, FreeMatch> match;
};

WordSplitter::WordSplitter(std::string_view text) : text_(text), state_(std::make_unique<State>()) {
  state_->repaired = with_signs(text);
  state_->subject = reinterpret_cast<PCRE2_SPTR>(state_->repaired.empty() ? text.data() : state_->repaired.data());
  state_->match.reset(pcre2_match_data_create(1, nullptr));
  CHECK(state_->match != nullptr, "memory for one match");
}

WordSplitter::~WordSplitter() = default;

std::string_view WordSplitter::next() {
  if (at_ == text_.size()) return {};
  static const Pattern& p = pattern();
  pcre2_match_data* match = state_->match.get();
  const int matches =
      p.is_machine_code
          ? pcre2_jit_match(p.code.get(), state_->subject, text_.size(), at_, 0, match, nullptr)
          : pcre2_match(p.code.get(), state_->subject, text_.size(), at_, PCRE2_NO_UTF_CHECK, match, nullptr);
  const std::size_t end = pcre2_get_ovector_pointer(match)[1];
  CHECK(matches == 1 && end > at_, "every character belongs to a piece");
  const std::string_view word = text_.substr(at_, end - at_);
  at_ = end;
  return word;
}

}  // namespace ddprun::data
