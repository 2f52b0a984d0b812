#include "common/visible_text.h"

#include <fmt/format.h>

namespace ddprun {

std::string visible(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string visible_sentence(std::string_view text) {
  std::string out = visible(text);
  if (text.find('\r') != std::string_view::npos) {
    out +=
        " (\\r is a carriage return: the file that this command stands in has Windows line ends; dos2unix FILE mends "
        "it)";
  }
  return out;
}

}  // namespace ddprun
