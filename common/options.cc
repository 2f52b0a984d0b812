#include "common/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "common/check.h"
#include "common/printable.h"

namespace ddprun {
namespace {

std::string hyphens(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

Error usage(std::string message) { return Error(Errc::invalid_argument, std::move(message)); }

// ---- The pre-pass: torchrun's spellings -> one token a value -------------------------------------------------------

struct Token {
  const OptionSpec* spec = nullptr;
  std::string value;   // empty for flags
  std::string source;  // "--nnodes" or "PET_NNODES"
};

struct Expanded {
  std::vector<Token> tokens;
  std::vector<std::string> rest;
  std::optional<Error> error;  // the first; scanning goes on, so that --help beside a typing error still helps
};

bool takes_value(const OptionSpec& spec) { return spec.kind != OptionKind::flag; }

// argparse's rule for what may follow an option as its value: not something that looks like another option. Negative
// numbers and words with a space may.
bool looks_like_option(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return false;
  if (word.find(' ') != std::string::npos) return false;
  double number = 0;
  const auto [end, ec] = std::from_chars(word.data(), word.data() + word.size(), number);
  return !(ec == std::errc() && end == word.data() + word.size());
}

class Expander {
 public:
  Expander(const std::vector<OptionSpec>& options, RestPolicy rest, std::span<const std::string> arguments)
      : options_(options), rest_(rest), arguments_(arguments) {}

  Expanded run() {
    while (next_ < arguments_.size()) {
      const std::string& word = arguments_[next_];
      if (word == "--") {
        ++next_;
        take_rest();
        break;
      }
      if (word.starts_with("--")) {
        ++next_;
        long_option(word);
      } else if (word.size() >= 2 && word[0] == '-') {
        ++next_;
        short_options(word);
      } else if (rest_ == RestPolicy::list) {
        out_.rest.push_back(word);
        ++next_;
      } else {
        take_rest();
        break;
      }
    }
    return std::move(out_);
  }

 private:
  void fail(std::string message) {
    if (!out_.error) out_.error = usage(std::move(message));
  }

  // Everything from here on is positional.
  void take_rest() {
    if (next_ >= arguments_.size()) return;
    if (rest_ == RestPolicy::none) {
      fail("unexpected argument '" + arguments_[next_] + "': this program takes options only");
      return;
    }
    const bool separator_before = next_ > 0 && arguments_[next_ - 1] == "--";
    out_.rest.push_back(arguments_[next_++]);
    // `program -- arguments`: argparse swallows that separator too, unless it already had one before the program.
    if (rest_ == RestPolicy::script_args && !separator_before && next_ < arguments_.size() &&
        arguments_[next_] == "--") {
      ++next_;
    }
    out_.rest.insert(out_.rest.end(), arguments_.begin() + static_cast<std::ptrdiff_t>(next_), arguments_.end());
    next_ = arguments_.size();
  }

  const OptionSpec* find_long(const std::string& given) {
    const std::string name = hyphens(given);
    std::vector<const OptionSpec*> matches;
    for (const OptionSpec& spec : options_) {
      if (spec.name == name) return &spec;
      if (!name.empty() && spec.name.starts_with(name)) matches.push_back(&spec);
    }
    if (matches.size() > 1) {
      // An abbreviation that is unique among the options that the replaced program has means the same here.
      std::vector<const OptionSpec*> old;
      for (const OptionSpec* spec : matches) {
        if (!spec->compatibility.starts_with("new")) old.push_back(spec);
      }
      if (old.size() == 1) matches = old;
    }
    if (matches.size() == 1) return matches.front();
    if (matches.empty()) {
      std::vector<std::string> names;
      for (const OptionSpec& spec : options_) names.push_back(spec.name);
      const auto nearest = nearest_name(name, names);
      fail("unknown option '--" + given + "'" + (nearest ? ": did you mean '--" + *nearest + "'?" : " (see --help)"));
    } else {
      std::string list;
      for (const OptionSpec* spec : matches) list += (list.empty() ? "--" : ", --") + spec->name;
      fail("option '--" + given + "' is ambiguous: it could be " + list);
    }
    return nullptr;
  }

  void take_value(const OptionSpec& spec, const std::string& shown) {
    if (next_ >= arguments_.size() || arguments_[next_] == "--" || looks_like_option(arguments_[next_])) {
      std::string message = shown + " needs a value";
      if (next_ < arguments_.size() && arguments_[next_] != "--") {
        message +=
            ", but '" + arguments_[next_] + "' follows (write " + shown + "=VALUE for a value that starts with '-')";
      }
      fail(std::move(message));
      return;
    }
    out_.tokens.push_back({&spec, arguments_[next_++], "--" + spec.name});
  }

  void long_option(const std::string& word) {
    const auto equals = word.find('=');
    const std::string given = word.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
    const OptionSpec* spec = find_long(given);
    if (spec == nullptr) return;
    if (!takes_value(*spec)) {
      if (equals != std::string::npos) {
        fail("--" + spec->name + " is a flag and takes no value, but '" + word.substr(equals + 1) + "' was given");
        return;
      }
      out_.tokens.push_back({spec, "", "--" + spec->name});
    } else if (equals != std::string::npos) {
      out_.tokens.push_back({spec, word.substr(equals + 1), "--" + spec->name});
    } else {
      take_value(*spec, "--" + spec->name);
    }
  }

  // -m, -r 3, -r3, -r=3, -mr3
  void short_options(const std::string& word) {
    for (std::size_t i = 1; i < word.size(); ++i) {
      const auto spec = std::find_if(options_.begin(), options_.end(),
                                     [&](const OptionSpec& candidate) { return candidate.short_name == word[i]; });
      if (spec == options_.end()) {
        std::vector<std::string> names;
        for (const OptionSpec& candidate : options_) names.push_back(candidate.name);
        const auto nearest = nearest_name(hyphens(word.substr(1)), names);
        fail("unknown option '" + word + "'" + (nearest ? ": did you mean '--" + *nearest + "'?" : " (see --help)"));
        return;
      }
      if (!takes_value(*spec)) {
        out_.tokens.push_back({&*spec, "", "--" + spec->name});
        continue;
      }
      std::string attached = word.substr(i + 1);
      if (attached.empty()) {
        take_value(*spec, std::string("-") + word[i]);
      } else {
        if (attached.front() == '=') attached.erase(0, 1);
        out_.tokens.push_back({&*spec, attached, "--" + spec->name});
      }
      return;
    }
  }

  const std::vector<OptionSpec>& options_;
  RestPolicy rest_;
  std::span<const std::string> arguments_;
  std::size_t next_ = 0;
  Expanded out_;
};

// ---- Values --------------------------------------------------------------------------------------------------------

std::optional<std::int64_t> to_integer(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> to_real(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<bool> to_flag(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "1" || lower == "true" || lower == "yes") return true;
  if (lower == "0" || lower == "false" || lower == "no") return false;
  return std::nullopt;
}

std::string number_text(double value) {
  // A limit of a billion is 1000000000 and not 1e+09.
  if (value == std::trunc(value) && std::abs(value) < 1e15) return std::to_string(static_cast<std::int64_t>(value));
  std::array<char, 32> buffer{};
  const auto [end, ec] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return ec == std::errc() ? std::string(buffer.data(), end) : std::string("?");
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += separator;
    out += word;
  }
  return out;
}

// "" if `value` fits; else what is wrong with it, without the option's name.
std::string check_value(const OptionSpec& spec, const std::string& value) {
  const auto quoted = "'" + value + "' ";
  // Nobody means it, and as the name of a folder or a job it is not seen.
  if (value.ends_with('\r')) return quoted + "ends in a carriage return";
  if (spec.kind == OptionKind::choice) {
    if (std::find(spec.choices.begin(), spec.choices.end(), value) != spec.choices.end()) return "";
    const auto nearest = nearest_name(value, spec.choices);
    return quoted + "is not one of " + join(spec.choices, ", ") + (nearest ? ": did you mean '" + *nearest + "'?" : "");
  }
  if (spec.kind != OptionKind::integer && spec.kind != OptionKind::real) return "";
  std::optional<double> number;
  if (spec.kind == OptionKind::integer) {
    const auto integer = to_integer(value);
    if (!integer) return quoted + "is not a whole number";
    number = static_cast<double>(*integer);
  } else {
    number = to_real(value);
    if (!number) return quoted + "is not a number";
  }
  const bool low = spec.min_value && *number < *spec.min_value;
  const bool high = spec.max_value && *number > *spec.max_value;
  if (!low && !high) return "";
  if (spec.min_value && spec.max_value) {
    return quoted + "is outside of " + number_text(*spec.min_value) + " to " + number_text(*spec.max_value);
  }
  return quoted + (low ? "is below " + number_text(*spec.min_value) : "is above " + number_text(*spec.max_value));
}

const ParsedOptions::Value& value_of(const std::map<std::string, ParsedOptions::Value, std::less<>>& values,
                                     std::string_view name) {
  const auto found = values.find(name);
  CHECK(found != values.end(), "an option that is not in the table was asked for");
  return found->second;
}

}  // namespace

OptionSpec make_option(std::string name, OptionKind kind, std::string default_text, std::string value_name,
                       std::string help) {
  OptionSpec spec;
  spec.name = std::move(name);
  spec.kind = kind;
  spec.default_text = std::move(default_text);
  spec.value_name = std::move(value_name);
  spec.help = std::move(help);
  return spec;
}

EnvLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

bool ParsedOptions::flag(std::string_view name) const { return value_of(values_, name).text == "1"; }

const std::string& ParsedOptions::text(std::string_view name) const { return value_of(values_, name).text; }

std::int64_t ParsedOptions::integer(std::string_view name) const {
  const auto value = to_integer(text(name));
  CHECK(value.has_value(), "integer() of an option that has no whole number");
  return *value;
}

double ParsedOptions::real(std::string_view name) const {
  const auto value = to_real(text(name));
  CHECK(value.has_value(), "real() of an option that has no number");
  return *value;
}

const std::vector<std::string>& ParsedOptions::texts(std::string_view name) const {
  return value_of(values_, name).texts;
}

bool ParsedOptions::given(std::string_view name) const { return value_of(values_, name).given; }

std::string ParsedOptions::source(std::string_view name) const { return value_of(values_, name).source; }

void ParsedOptions::fill(std::string_view name, std::string text, std::string source) {
  const auto found = values_.find(name);
  CHECK(found != values_.end(), "an option that is not in the table was to be filled");
  if (found->second.given) return;
  found->second = Value{text, {text}, std::move(source), true};
}

OptionTable::OptionTable(std::string program, std::string synopsis, std::vector<OptionSpec> options, RestPolicy rest,
                         HelpLayout layout)
    : program_(std::move(program)),
      synopsis_(std::move(synopsis)),
      options_(std::move(options)),
      rest_policy_(rest),
      layout_(std::move(layout)) {
  if (!layout_.groups.empty()) {
    OptionSpec all;
    all.name = "help-all";
    all.kind = OptionKind::flag;
    all.help = "show every option and exit";
    all.compatibility = "new: --help shows the usual ones";
    options_.push_back(std::move(all));
  }
  OptionSpec help;
  help.name = "help";
  help.short_name = 'h';
  help.kind = OptionKind::flag;
  help.help = "show this text and exit";
  help.compatibility = "same";
  options_.push_back(std::move(help));
  OptionSpec version;
  version.name = "version";
  version.kind = OptionKind::flag;
  version.help = "show version, commit, compiler and what was found at build time, and exit";
  version.compatibility = "new: torchrun has none";
  options_.push_back(std::move(version));
  for (std::size_t i = 0; i < options_.size(); ++i) {
    const OptionSpec& spec = options_[i];
    CHECK(spec.name.find('_') == std::string::npos, "option names are written with hyphens");
    CHECK(spec.kind != OptionKind::choice || !spec.choices.empty(), "a choice option without choices");
    CHECK(spec.default_text.empty() || !takes_value(spec) || check_value(spec, spec.default_text).empty(),
          "the default of an option does not pass its own check");
    for (std::size_t j = 0; j < i; ++j) CHECK(options_[j].name != spec.name, "two options of one name");
  }
  std::vector<std::string> shown;
  for (const HelpGroup& group : layout_.groups) {
    for (const std::string& name : group.options) {
      CHECK(std::any_of(options_.begin(), options_.end(), [&](const OptionSpec& spec) { return spec.name == name; }),
            "a group of the help names an option that is not in the table");
      CHECK(std::find(shown.begin(), shown.end(), name) == shown.end(), "an option in two groups of the help");
      shown.push_back(name);
    }
  }
}

Result<ParsedOptions> OptionTable::parse(std::span<const std::string> arguments, const EnvLookup& env) const {
  Expanded expanded = Expander(options_, rest_policy_, arguments).run();
  ParsedOptions parsed;
  for (const OptionSpec& spec : options_) {
    ParsedOptions::Value& value = parsed.values_[spec.name];
    if (!takes_value(spec)) continue;
    value.text = spec.default_text;
    if (spec.repeatable && !spec.default_text.empty()) value.texts.push_back(spec.default_text);
  }
  for (const Token& token : expanded.tokens) {
    const std::string& name = token.spec->name;
    if (name != "help" && name != "help-all" && name != "version") continue;
    ParsedOptions::Value& value = parsed.values_[token.spec->name];
    value.text = "1";
    value.given = true;
    return parsed;
  }
  if (expanded.error) return std::move(*expanded.error);

  // A variable counts where the command line says nothing.
  const std::size_t on_command_line = expanded.tokens.size();
  for (const OptionSpec& spec : options_) {
    if (spec.env.empty()) continue;
    const auto end = expanded.tokens.begin() + static_cast<std::ptrdiff_t>(on_command_line);
    if (std::any_of(expanded.tokens.begin(), end, [&](const Token& token) { return token.spec == &spec; })) continue;
    auto text = env(spec.env);
    if (!text || text->empty()) continue;
    if (takes_value(spec)) {
      expanded.tokens.push_back({&spec, std::move(*text), spec.env});
      continue;
    }
    const auto on = to_flag(*text);
    if (!on) {
      return usage(spec.env + ": '" + *text + "' is neither yes (1, true, yes) nor no (0, false, no)");
    }
    if (*on) {
      expanded.tokens.push_back({&spec, "", spec.env});
    } else {
      parsed.values_[spec.name].given = true;
      parsed.values_[spec.name].source = spec.env;
    }
  }
  for (const Token& token : expanded.tokens) {
    if (!takes_value(*token.spec)) continue;
    const std::string problem = check_value(*token.spec, token.value);
    if (!problem.empty()) return usage(token.source + ": " + problem);
  }
  // Of an option that is given more than once the last one counts; texts() has all of a repeatable one.
  for (Token& token : expanded.tokens) {
    ParsedOptions::Value& value = parsed.values_[token.spec->name];
    if (!takes_value(*token.spec)) {
      value.text = "1";
    } else {
      if (!value.given || !token.spec->repeatable) value.texts.clear();  // of the default
      value.text = token.value;
      value.texts.push_back(std::move(token.value));
    }
    value.given = true;
    value.source = std::move(token.source);
  }
  parsed.rest_ = std::move(expanded.rest);
  return parsed;
}

std::string usage_sentence(std::string_view text) {
  std::string out = printable(text);
  if (text.find('\r') != std::string_view::npos) {
    out +=
        " (\\r is a carriage return: the file that this command stands in has Windows line ends; dos2unix FILE mends "
        "it)";
  }
  return out;
}

std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    // Edit distance in which two swapped neighbours cost one.
    std::vector<std::size_t> before_last, last(candidate.size() + 1), row(candidate.size() + 1);
    for (std::size_t j = 0; j <= candidate.size(); ++j) last[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      row[0] = i;
      for (std::size_t j = 1; j <= candidate.size(); ++j) {
        const std::size_t change = word[i - 1] == candidate[j - 1] ? 0 : 1;
        row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
        if (i > 1 && j > 1 && word[i - 1] == candidate[j - 2] && word[i - 2] == candidate[j - 1]) {
          row[j] = std::min(row[j], before_last[j - 2] + 1);
        }
      }
      before_last = last;
      last = row;
    }
    std::size_t distance = last[candidate.size()];
    // Long words may differ more; a name that contains the word (or the other way round) is near too.
    const std::size_t allowed = std::max<std::size_t>(1, std::min(word.size(), candidate.size()) / 3);
    const auto common = static_cast<std::size_t>(
        std::mismatch(word.begin(), word.end(), candidate.begin(), candidate.end()).first - word.begin());
    const bool same_start = common >= 4 && common + 2 >= word.size();  // "nprocs" for "nproc-per-node"
    const bool contains = word.size() >= 4 && candidate.find(word) != std::string::npos;
    if (same_start || contains) distance = std::min(distance, allowed);
    if (distance <= allowed && (!best || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace ddprun
