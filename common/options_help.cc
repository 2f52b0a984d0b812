#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/options.h"

// What a table says of itself: --help, --help-all and the README's rows.
namespace ddprun {
namespace {

constexpr std::size_t kIndent = 6;
constexpr std::size_t kWidth = 98;

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : std::string(separator)) + word;
  return out;
}

// Breaks `text` at spaces into lines of at most `width` bytes.
std::vector<std::string> wrap(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      lines.push_back(std::move(line));
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string escape_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string entry(const OptionSpec& spec) {
  const bool takes_value = spec.kind != OptionKind::flag;
  std::string out = "  ";
  if (spec.short_name != '\0') out += std::string("-") + spec.short_name + ", ";
  out += "--" + spec.name;
  if (takes_value) {
    const bool list_choices = spec.kind == OptionKind::choice && spec.value_name.empty();
    out += " " + (list_choices ? join(spec.choices, "|") : spec.value_name.empty() ? "VALUE" : spec.value_name);
  }
  out += "\n";
  std::string text = spec.help;
  if (spec.kind == OptionKind::choice && !spec.value_name.empty()) text += " (" + join(spec.choices, ", ") + ")";
  if (takes_value && !spec.default_text.empty()) text += " [default: " + spec.default_text + "]";
  if (!spec.env.empty()) text += " [" + spec.env + "]";
  for (const std::string& line : wrap(text, kWidth - kIndent)) out += std::string(kIndent, ' ') + line + "\n";
  return out;
}

constexpr const char* kSpelling = "hyphens or underscores, unique beginnings are enough";

std::string grouped(const std::vector<OptionSpec>& options, const HelpLayout& layout, bool all) {
  std::vector<bool> shown(options.size(), false);
  std::string out;
  for (const HelpGroup& group : layout.groups) {
    out += "\n" + group.title + ":\n";
    for (const std::string& name : group.options) {
      const auto spec =
          std::find_if(options.begin(), options.end(), [&](const OptionSpec& one) { return one.name == name; });
      shown[static_cast<std::size_t>(spec - options.begin())] = true;
      out += entry(*spec);
    }
  }
  std::string rest;
  std::size_t more = 0;
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (shown[i]) continue;
    ++more;
    rest += entry(options[i]);
  }
  if (all) return out + "\nRare options:\n" + rest;
  return out + "\n" + std::to_string(more) + " more options: --help-all. Spelling: " + kSpelling + ".\n";
}

}  // namespace

std::string OptionTable::help() const {
  std::string out = "Usage: " + synopsis_ + "\n";
  if (!layout_.examples.empty()) out += "\nExamples:\n" + layout_.examples;
  if (!layout_.groups.empty()) return out + grouped(options_, layout_, false);
  out += std::string("\nOptions (") + kSpelling + "):\n";
  for (const OptionSpec& spec : options_) out += entry(spec);
  return out;
}

std::string OptionTable::help_all() const {
  if (layout_.groups.empty()) return help();
  std::string out = "Usage: " + synopsis_ + "\n";
  if (!layout_.examples.empty()) out += "\nExamples:\n" + layout_.examples;
  return out + grouped(options_, layout_, true);
}

std::string OptionTable::markdown() const {
  std::string out;
  for (const OptionSpec& spec : options_) {
    const std::string shortcut = spec.short_name == '\0' ? "" : std::string("`-") + spec.short_name + "` ";
    out += "| " + shortcut + "`--" + spec.name + "` | " + (spec.env.empty() ? "" : "`" + spec.env + "`") + " | " +
           (spec.default_text.empty() ? "" : "`" + escape_cell(spec.default_text) + "`") + " | " +
           escape_cell(spec.compatibility) + " | " + escape_cell(spec.help) + " |\n";
  }
  return out;
}

}  // namespace ddprun
