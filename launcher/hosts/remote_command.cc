#include "launcher/hosts/remote_command.h"

#include <fmt/format.h>

namespace ddprun::launcher {

Result<std::vector<std::string>> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = '\0';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else if (c == '\\' && quote == '"' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\')) {
        word += text[++i];
      } else {
        word += c;
      }
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else {
      in_word = true;
      if (c == '\'' || c == '"') {
        quote = c;
      } else if (c == '\\') {
        if (i + 1 == text.size()) return Error(Errc::invalid_argument, fmt::format("'{}' ends in a backslash", text));
        word += text[++i];
      } else {
        word += c;
      }
    }
  }
  if (quote != '\0') return Error(Errc::invalid_argument, fmt::format("'{}' has a {} that does not end", text, quote));
  if (in_word) words.push_back(std::move(word));
  if (words.empty()) return Error(Errc::invalid_argument, "there is no command in it");
  return words;
}

std::string shell_quoted(std::string_view word) {
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'' || c == '!' || c == '\\') {
      // csh's history knows no quotes but a backslash, and fish takes \' for a quote even between quotes.
      out += "'\\";
      out += c;
      out += '\'';
    } else {
      out += c;
    }
  }
  return out + "'";
}

Result<std::vector<std::string>> remote_command(const std::vector<std::string>& remote_shell, const std::string& host,
                                                const std::string& ddprun) {
  if (ddprun.find_first_of("\n\r") != std::string::npos || ddprun.empty()) {
    return Error(Errc::invalid_argument,
                 fmt::format("the path of this ddprun ('{}') cannot be written for a remote shell", ddprun));
  }
  std::vector<std::string> out = remote_shell;
  out.push_back(host);
  out.push_back(fmt::format("{} {}", shell_quoted(ddprun), kNodeWord));
  return out;
}

}  // namespace ddprun::launcher
