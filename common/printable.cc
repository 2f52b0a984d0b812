#include "common/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace ddprun {
namespace {

unsigned char byte(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

// How long the character has to be by its first byte; 0 = no first byte.
std::size_t length_by_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

bool is_control(std::string_view character) {
  const unsigned char lead = byte(character, 0);
  if (character.size() == 1) return lead < 0x20 || lead == 0x7f;
  if (lead == 0xc2) return byte(character, 1) < 0xa0;  // U+0080 to U+009F
  if (character.size() != 3 || lead != 0xe2) return false;
  const unsigned char second = byte(character, 1), third = byte(character, 2);
  // U+2028 and U+2029 end lines; U+202A to U+202E and U+2066 to U+2069 turn the direction of what follows.
  return (second == 0x80 && third >= 0xa8 && third <= 0xae) || (second == 0x81 && third >= 0xa6 && third <= 0xa9);
}

std::string escaped(std::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(character.size());
    const char c = character.front();
    if (keep_lines && (c == '\n' || c == '\t')) {
      out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (length == 0 || is_control(character)) {
      for (const char part : character) {
        fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(part));
      }
    } else {
      out += character;
    }
  }
  return out;
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const unsigned char lead = byte(text, 0);
  const std::size_t length = length_by_lead(lead);
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(text, i) & 0xc0) != 0x80) return 0;
  }
  if (length == 1) return 1;
  // Longer than needed, a surrogate, beyond U+10FFFF.
  const unsigned char second = byte(text, 1);
  const bool wrong = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second >= 0xa0) ||
                     (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second >= 0x90);
  return wrong ? 0 : length;
}

std::string_view without_torn_end(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const unsigned char c = byte(text, text.size() - back);
    if ((c & 0xc0) == 0x80) continue;  // in the middle of one
    return length_by_lead(c) > back ? text.substr(0, text.size() - back) : text;
  }
  return text;
}

std::string printable(std::string_view text) { return escaped(text, false); }

std::string printable_lines(std::string_view text) { return escaped(text, true); }

std::string printable_without_colours(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const std::size_t start = text.find("\x1b[");
    plain += text.substr(0, start);
    if (start == std::string_view::npos) break;
    text.remove_prefix(start);
    const std::size_t end = text.find_first_not_of("0123456789;:", 2);
    const bool colour = end != std::string_view::npos && text[end] == 'm';
    if (!colour) plain += text.substr(0, 2);
    text.remove_prefix(colour ? end + 1 : 2);
  }
  return printable(plain);
}

}  // namespace ddprun
