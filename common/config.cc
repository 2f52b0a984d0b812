#include "common/config.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "common/config_tree.h"
#include "common/options.h"

namespace ddprun {
namespace {

using config_tree::join_path;
using config_tree::Kind;
using config_tree::Node;
using config_tree::parse_yaml;
using config_tree::place;

std::string_view kind_text(Kind kind) {
  switch (kind) {
    case Kind::null:
      return "empty";
    case Kind::scalar:
      return "a single value";
    case Kind::sequence:
      return "a list";
    case Kind::mapping:
      return "a group of keys";
  }
  return "something else";
}

// The number, or why the text is none.
struct Number {
  double real = 0;
  std::int64_t integer = 0;
  std::string problem;
};

Number parse_real(const Node& node) {
  Number number;
  const std::string quote = "'" + node.text + "' ";
  if (node.quoted) {
    number.problem = quote + "is a text, not a number: leave the quotes out";
    return number;
  }
  std::string_view text = node.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number.real);
  if (ec == std::errc::result_out_of_range) {
    number.problem = quote + "is too large or too small for a 64-bit float";
  } else if (ec != std::errc() || end != text.data() + text.size() || text.starts_with('+')) {
    number.problem = quote + "is not a number";
    if (text.find('_') != std::string_view::npos) number.problem += " (no '_' between digits)";
    if (text.find(',') != std::string_view::npos) number.problem += " (the decimal point is '.')";
  } else if (!std::isfinite(number.real)) {
    number.problem = quote + "must be a finite number";
  }
  return number;
}

Number parse_integer(const Node& node) {
  Number number;
  std::string_view text = node.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number.integer);
  if (!node.quoted && ec == std::errc() && end == text.data() + text.size()) return number;
  number = parse_real(node);  // 1e6 is a fine way to write a number of steps
  if (!number.problem.empty()) {
    const auto at = number.problem.find("is not a number");
    if (at != std::string::npos) number.problem.replace(at, 15, "is not a whole number");
    return number;
  }
  if (number.real != std::floor(number.real) || std::fabs(number.real) > 9007199254740992.0) {
    number.problem = "'" + node.text + "' is not a whole number";
    return number;
  }
  number.integer = static_cast<std::int64_t>(number.real);
  return number;
}

std::string number_text(double value) {
  char text[32];
  const auto [end, ec] = std::to_chars(text, text + sizeof(text), value);
  return ec == std::errc() ? std::string(text, end) : "?";
}

// "[a, b]"; "" for an empty list.
template <typename T, typename Text>
std::string list_text(const std::vector<T>& values, const Text& text) {
  std::string out;
  for (const T& value : values) out += (out.empty() ? "[" : ", ") + text(value);
  return out.empty() ? out : out + "]";
}

std::string out_of_range(const std::string& text, const std::string& min, const std::string& max, bool low,
                         bool max_is_open) {
  if (max_is_open) return "'" + text + "' is " + (low ? "below " + min : "above " + max);
  return "'" + text + "' is outside of " + min + " to " + max;
}

}  // namespace

struct ConfigState {
  std::string file;
  std::shared_ptr<Node> root;
  std::optional<Error> first_error;
  std::optional<Error> first_missing;  // said only when no misspelt key explains it
  std::vector<std::string> warnings;
  std::map<std::string, std::set<std::string>> asked;  // section -> the names that were asked for in it
  std::set<std::string> idle;                          // full names of keys without an effect
  std::map<std::string, std::string> fallbacks;        // full name of each value that was read -> its fallback
};

struct Config::Impl {
  std::shared_ptr<ConfigState> state;
};

struct ConfigSection::Impl {
  std::shared_ptr<ConfigState> state;
  std::shared_ptr<Node> node;  // null: the section is not there
  std::string path;            // "" for the root

  Node* find(std::string_view key) const {
    state->asked[path].insert(std::string(key));
    Node* found = node ? node->find(key) : nullptr;
    return found != nullptr && found->kind != Kind::null ? found : nullptr;
  }

  void note_fallback(std::string_view key, std::string text) const {
    state->fallbacks.emplace(join_path(path, key), std::move(text));
  }

  // The value under `key`, marked as known. Null if it is missing or empty.
  Node* read(std::string_view key) const {
    if (node) {
      if (Node* raw = node->find(key)) raw->known = true;
    }
    return find(key);
  }

  std::string where(std::string_view key, int item_line = 0) const {
    const std::string full = join_path(path, key);
    const Node* found = node ? node->find(key) : nullptr;
    const Node* nearest = found != nullptr ? found : node.get();
    if (nearest != nullptr && nearest->line == 0) return "--set " + full;
    return place(state->file, item_line > 0 ? item_line : nearest == nullptr ? 0 : nearest->line) + ": " + full;
  }

  void fail(std::string_view key, std::string_view message, int item_line = 0) const {
    if (state->first_error) return;
    state->first_error = Error(Errc::invalid_argument, where(key, item_line) + ": " + std::string(message));
  }

  void missing(std::string_view key, std::string_view message) const {
    if (state->first_missing) return;
    state->first_missing = Error(Errc::invalid_argument, where(key) + ": " + std::string(message));
  }

  // The scalar under `key`; null if missing, or if it is something else (then the error is recorded).
  Node* scalar(std::string_view key) const {
    Node* found = read(key);
    if (found == nullptr) return nullptr;
    if (found->kind == Kind::scalar) return found;
    fail(key, "must be a single value, not " + std::string(kind_text(found->kind)));
    return nullptr;
  }

  // The items under `key`, a lone scalar counting as one item; null if missing or wrong.
  std::optional<std::vector<Node*>> list(std::string_view key) const {
    Node* found = read(key);
    if (found == nullptr) return std::nullopt;
    std::vector<Node*> items;
    if (found->kind == Kind::scalar) {
      items.push_back(found);
      return items;
    }
    if (found->kind == Kind::sequence) {
      for (const auto& item : found->items) {
        if (item->kind != Kind::scalar) {
          fail(key, "must be a list of single values", item->line);
          return std::nullopt;
        }
        items.push_back(item.get());
      }
      return items;
    }
    fail(key, "must be a list, not " + std::string(kind_text(found->kind)));
    return std::nullopt;
  }
};

Config::Config(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Config::Config(Config&&) noexcept = default;
Config& Config::operator=(Config&&) noexcept = default;
Config::~Config() = default;

Result<Config> Config::load(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) return Error::from_errno(errno == 0 ? EIO : errno, "cannot read '" + path + "'");
  std::stringstream text;
  in.peek();  // a folder opens, but does not read
  if (in.bad()) return Error::from_errno(errno == 0 ? EIO : errno, "cannot read '" + path + "'");
  in.clear();
  text << in.rdbuf();
  return parse(text.str(), path);
}

Result<Config> Config::parse(const std::string& text, const std::string& name_for_errors) {
  auto root = parse_yaml(text, name_for_errors);
  if (!root) return std::move(root).error();
  if ((*root)->kind == Kind::null) (*root)->kind = Kind::mapping;
  if ((*root)->kind != Kind::mapping) {
    return Error(Errc::malformed, place(name_for_errors, (*root)->line) +
                                      ": the file must be 'key: value' lines, not " +
                                      std::string(kind_text((*root)->kind)));
  }
  auto impl = std::make_unique<Impl>();
  impl->state = std::make_shared<ConfigState>();
  impl->state->file = name_for_errors;
  impl->state->root = std::move(*root);
  (void)impl->state->asked[""];
  return Config(std::move(impl));
}

static void forget_lines(Node& node) {
  node.line = 0;
  for (auto& [name, member] : node.members) forget_lines(*member);
  for (auto& item : node.items) forget_lines(*item);
}

Result<void> Config::override_value(const std::string& assignment) {
  const auto equals = assignment.find('=');
  const std::string path = assignment.substr(0, equals);
  if (equals == std::string::npos || path.empty() || path.front() == '.' || path.back() == '.' ||
      path.find("..") != std::string::npos) {
    return Error(Errc::invalid_argument, "--set '" + assignment + "': expected KEY.KEY=VALUE, e.g. data.batch_size=32");
  }
  auto value = parse_yaml(assignment.substr(equals + 1), "--set " + path);
  if (!value) return std::move(value).error();
  if ((*value)->kind == Kind::mapping) {
    return Error(Errc::invalid_argument,
                 "--set " + path + ": one value or a list [a, b] is expected, not a group of keys");
  }
  forget_lines(**value);
  Node* node = impl_->state->root.get();
  std::size_t start = 0;
  for (;;) {
    const auto dot = path.find('.', start);
    const std::string key = path.substr(start, dot == std::string::npos ? std::string::npos : dot - start);
    auto member =
        std::find_if(node->members.begin(), node->members.end(), [&](const auto& entry) { return entry.first == key; });
    if (dot == std::string::npos) {
      if (member == node->members.end()) {
        node->members.emplace_back(key, std::move(*value));
      } else {
        member->second = std::move(*value);
      }
      return {};
    }
    if (member == node->members.end()) {
      auto fresh = std::make_shared<Node>();
      fresh->kind = Kind::mapping;
      member = node->members.emplace(node->members.end(), key, std::move(fresh));
    }
    Node* next = member->second.get();
    if (next->kind == Kind::scalar) {
      next->shorthand = std::make_shared<Node>(*next);
    } else if (next->kind == Kind::sequence) {
      return Error(Errc::invalid_argument, "--set " + path + ": '" + key + "' is a list in " + impl_->state->file);
    }
    next->kind = Kind::mapping;
    node = next;
    start = dot + 1;
  }
}

ConfigSection Config::root() {
  auto impl = std::make_shared<ConfigSection::Impl>();
  impl->state = impl_->state;
  impl->node = impl_->state->root;
  return ConfigSection(std::move(impl));
}

static std::optional<Error> first_unknown(const ConfigState& state, const Node& node, const std::string& path) {
  const auto asked = state.asked.find(path);
  for (const auto& [key, member] : node.members) {
    const std::string full = join_path(path, key);
    const std::string shown = member->line == 0 ? "--set " + full : place(state.file, member->line) + ": " + full;
    if (!member->known) {
      std::vector<std::string> names;
      if (asked != state.asked.end()) names.assign(asked->second.begin(), asked->second.end());
      const auto nearest = nearest_name(key, names);
      std::string message = shown + ": unknown key";
      if (nearest) {
        message += ": did you mean '" + *nearest + "'?";
      } else if (!names.empty()) {
        message += "; known here: ";
        for (std::size_t i = 0; i < names.size(); ++i) message += (i == 0 ? "" : ", ") + names[i];
      }
      return Error(Errc::invalid_argument, std::move(message));
    }
    // Only what was opened as a section has keys of its own to check.
    if (member->kind == Kind::mapping && state.asked.count(full) != 0) {
      if (auto error = first_unknown(state, *member, full)) return error;
    }
  }
  return std::nullopt;
}

Result<void> Config::finish() const {
  if (impl_->state->first_error) return *impl_->state->first_error;
  if (auto error = first_unknown(*impl_->state, *impl_->state->root, "")) return std::move(*error);
  if (impl_->state->first_missing) return *impl_->state->first_missing;
  return {};
}

std::map<std::string, std::string> Config::known_keys() const { return impl_->state->fallbacks; }

std::map<std::string, std::string> Config::effective() const {
  std::map<std::string, std::string> values;
  for (const auto& [key, fallback] : impl_->state->fallbacks) {
    if (impl_->state->idle.count(key) != 0) continue;
    const Node* node = impl_->state->root.get();
    for (std::size_t start = 0; node != nullptr && start != std::string::npos;) {
      const auto dot = key.find('.', start);
      node = node->find(std::string_view(key).substr(start, dot == std::string::npos ? dot : dot - start));
      start = dot == std::string::npos ? dot : dot + 1;
    }
    std::string text = fallback;
    if (node != nullptr && node->kind == Kind::scalar) text = node->text;
    if (node != nullptr && node->kind == Kind::sequence) {
      text = list_text(node->items, [](const std::shared_ptr<Node>& item) { return item->text; });
    }
    if (!text.empty()) values.emplace(key, std::move(text));
  }
  return values;
}

const std::vector<std::string>& Config::warnings() const { return impl_->state->warnings; }

ConfigSection ConfigSection::section(std::string_view key, std::string_view scalar_key) {
  auto child = std::make_shared<Impl>();
  child->state = impl_->state;
  child->path = join_path(impl_->path, key);
  (void)impl_->state->asked[child->path];
  const Node* found = impl_->read(key);
  if (found == nullptr) return ConfigSection(std::move(child));
  const auto& members = impl_->node->members;
  child->node =
      std::find_if(members.begin(), members.end(), [&](const auto& entry) { return entry.first == key; })->second;
  Node& node = *child->node;
  if (node.kind == Kind::scalar && !scalar_key.empty()) {
    node.shorthand = std::make_shared<Node>(node);
    node.kind = Kind::mapping;
  }
  if (node.kind != Kind::mapping || (node.shorthand && scalar_key.empty())) {
    impl_->fail(key,
                "must be a group of keys, not " + std::string(kind_text(node.shorthand ? Kind::scalar : node.kind)));
    child->node = nullptr;
  } else if (node.shorthand && node.find(scalar_key) == nullptr) {
    node.members.emplace_back(std::string(scalar_key), node.shorthand);
  }
  return ConfigSection(std::move(child));
}

bool ConfigSection::has(std::string_view key) const { return impl_->find(key) != nullptr; }

bool ConfigSection::is_mapping(std::string_view key) const {
  const Node* found = impl_->find(key);
  return found != nullptr && found->kind == Kind::mapping;
}

bool ConfigSection::is_empty(std::string_view key) const {
  const Node* raw = impl_->node ? impl_->node->find(key) : nullptr;
  return raw != nullptr && (raw->kind == Kind::null || (raw->kind == Kind::scalar && raw->text.empty()));
}

std::string ConfigSection::text(std::string_view key, std::string_view fallback) {
  impl_->note_fallback(key, std::string(fallback));
  const Node* found = impl_->scalar(key);
  return found != nullptr ? found->text : std::string(fallback);
}

std::string ConfigSection::required_text(std::string_view key) {
  impl_->note_fallback(key, "");
  const Node* found = impl_->scalar(key);
  if (found != nullptr && !found->text.empty()) return found->text;
  impl_->missing(key, "is missing");
  return "";
}

std::string ConfigSection::choice(std::string_view key, std::string_view fallback,
                                  const std::vector<std::string>& allowed) {
  impl_->note_fallback(key, std::string(fallback));
  const Node* found = impl_->scalar(key);
  if (found == nullptr) return std::string(fallback);
  if (std::find(allowed.begin(), allowed.end(), found->text) != allowed.end()) return found->text;
  std::string message = "'" + found->text + "' is not one of ";
  for (std::size_t i = 0; i < allowed.size(); ++i) message += (i == 0 ? "" : ", ") + allowed[i];
  if (const auto nearest = nearest_name(found->text, allowed)) message += ": did you mean '" + *nearest + "'?";
  impl_->fail(key, message);
  return std::string(fallback);
}

// ~ and ${VAR} of a path under `key`.
template <typename Fail>
static std::string expand_path(std::string text, const Fail& fail) {
  if (text == "~" || text.starts_with("~/")) {
    const char* home = std::getenv("HOME");
    if (home == nullptr) {
      fail("'" + text + "': HOME is not set");
      return text;
    }
    text.replace(0, 1, home);
  }
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "${") != 0) {
      out.push_back(text[i++]);
      continue;
    }
    const auto close = text.find('}', i);
    if (close == std::string::npos) {
      fail("'" + text + "': '${' without '}'");
      return text;
    }
    const std::string name = text.substr(i + 2, close - i - 2);
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) {
      fail("'" + text + "': the variable " + name + " is not set");
      return text;
    }
    out += value;
    i = close + 1;
  }
  return out;
}

std::string ConfigSection::path(std::string_view key, std::string_view fallback) {
  return expand_path(text(key, fallback), [&](const std::string& message) { impl_->fail(key, message); });
}

std::vector<std::string> ConfigSection::paths(std::string_view key) {
  std::vector<std::string> all = texts(key, {});
  for (std::string& path : all) {
    path = expand_path(std::move(path), [&](const std::string& message) { impl_->fail(key, message); });
  }
  return all;
}

std::int64_t ConfigSection::integer(std::string_view key, std::int64_t fallback, std::int64_t min, std::int64_t max) {
  impl_->note_fallback(key, std::to_string(fallback));
  const Node* found = impl_->scalar(key);
  if (found == nullptr) return fallback;
  const Number number = parse_integer(*found);
  if (!number.problem.empty()) {
    impl_->fail(key, number.problem);
    return fallback;
  }
  if (number.integer < min || number.integer > max) {
    impl_->fail(key, out_of_range(found->text, std::to_string(min), std::to_string(max), number.integer < min,
                                  max == INT64_MAX || min == INT64_MIN));
    return fallback;
  }
  return number.integer;
}

double ConfigSection::real(std::string_view key, double fallback, double min, double max) {
  impl_->note_fallback(key, number_text(fallback));
  const Node* found = impl_->scalar(key);
  if (found == nullptr) return fallback;
  const Number number = parse_real(*found);
  if (!number.problem.empty()) {
    impl_->fail(key, number.problem);
    return fallback;
  }
  if (number.real < min || number.real > max) {
    impl_->fail(key, out_of_range(found->text, number_text(min), number_text(max), number.real < min,
                                  std::fabs(max) >= 1e300 || std::fabs(min) >= 1e300));
    return fallback;
  }
  return number.real;
}

bool ConfigSection::boolean(std::string_view key, bool fallback) {
  impl_->note_fallback(key, fallback ? "true" : "false");
  const Node* found = impl_->scalar(key);
  if (found == nullptr) return fallback;
  std::string lower = found->text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (!found->quoted && (lower == "true" || lower == "yes" || lower == "on")) return true;
  if (!found->quoted && (lower == "false" || lower == "no" || lower == "off")) return false;
  impl_->fail(key, "'" + found->text + "' is neither true nor false");
  return fallback;
}

std::vector<double> ConfigSection::reals(std::string_view key, std::vector<double> fallback) {
  impl_->note_fallback(key, list_text(fallback, number_text));
  const auto items = impl_->list(key);
  if (!items) return fallback;
  std::vector<double> values;
  for (const Node* item : *items) {
    const Number number = parse_real(*item);
    if (!number.problem.empty()) {
      impl_->fail(key, number.problem, item->line);
      return fallback;
    }
    values.push_back(number.real);
  }
  return values;
}

std::vector<std::int64_t> ConfigSection::integers(std::string_view key, std::vector<std::int64_t> fallback) {
  impl_->note_fallback(key, list_text(fallback, [](std::int64_t value) { return std::to_string(value); }));
  const auto items = impl_->list(key);
  if (!items) return fallback;
  std::vector<std::int64_t> values;
  for (const Node* item : *items) {
    const Number number = parse_integer(*item);
    if (!number.problem.empty()) {
      impl_->fail(key, number.problem, item->line);
      return fallback;
    }
    values.push_back(number.integer);
  }
  return values;
}

std::vector<std::string> ConfigSection::texts(std::string_view key, std::vector<std::string> fallback) {
  impl_->note_fallback(key, list_text(fallback, [](const std::string& value) { return value; }));
  const auto items = impl_->list(key);
  if (!items) return fallback;
  std::vector<std::string> values;
  for (const Node* item : *items) values.push_back(item->text);
  return values;
}

void ConfigSection::error(std::string_view key, std::string_view message) { impl_->fail(key, message); }

void ConfigSection::missing(std::string_view key, std::string_view message) { impl_->missing(key, message); }

void ConfigSection::no_effect(std::string_view key, std::string_view why) {
  impl_->state->idle.insert(join_path(impl_->path, key));
  if (has(key)) impl_->state->warnings.push_back(where(key) + " has no effect: " + std::string(why));
}

std::string ConfigSection::where(std::string_view key) const { return impl_->where(key); }

}  // namespace ddprun
