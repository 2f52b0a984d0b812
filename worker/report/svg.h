#pragma once

#include <string>
#include <string_view>

namespace ddprun::trainer {

// Text between the tags of a picture.
inline std::string escape_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace ddprun::trainer
