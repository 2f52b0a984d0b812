#include "common/config_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <optional>
#include <sstream>

namespace ddprun::config_tree {

std::string join_path(const std::string& prefix, std::string_view key) {
  return prefix.empty() ? std::string(key) : prefix + "." + std::string(key);
}

std::string place(const std::string& file, int line) { return line > 0 ? file + ":" + std::to_string(line) : file; }

namespace {

constexpr int kMaxDepth = 32;                 // an alias may point at what holds it
constexpr std::size_t kMaxNodes = 1'000'000;  // aliases of aliases multiply

class Converter {
 public:
  explicit Converter(const std::string& file) : file_(file) {}

  Result<std::shared_ptr<Node>> convert(const YAML::Node& yaml, const std::string& path, int depth) {
    if (depth > kMaxDepth || ++count_ > kMaxNodes) {
      return Error(Errc::malformed,
                   place(file_, yaml.Mark().line + 1) + ": " + path + ": nested too deep or too large");
    }
    auto node = std::make_shared<Node>();
    node->line = yaml.Mark().line + 1;
    switch (yaml.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        break;
      case YAML::NodeType::Scalar:
        node->text = yaml.Scalar();
        node->quoted = yaml.Tag() == "!";
        node->kind = Kind::scalar;
        break;
      case YAML::NodeType::Sequence: {
        node->kind = Kind::sequence;
        for (std::size_t i = 0; i < yaml.size(); ++i) {
          auto item = convert(yaml[i], path + "[" + std::to_string(i) + "]", depth + 1);
          if (!item) return item;
          node->items.push_back(std::move(*item));
        }
        break;
      }
      case YAML::NodeType::Map: {
        node->kind = Kind::mapping;
        std::vector<std::pair<YAML::Node, int>> merged;
        for (const auto& entry : yaml) {
          const int line = entry.first.Mark().line + 1;
          if (!entry.first.IsScalar()) {
            return Error(Errc::malformed, place(file_, line) + ": " + path + ": a key must be a plain word");
          }
          const std::string key = entry.first.Scalar();
          if (key == "<<" && entry.first.Tag() != "!") {
            merged.emplace_back(entry.second, line);
            continue;
          }
          if (const Node* first = node->find(key)) {
            return Error(Errc::malformed, place(file_, line) + ": " + join_path(path, key) +
                                              ": the key is there twice (first in line " + std::to_string(first->line) +
                                              ")");
          }
          auto value = convert(entry.second, join_path(path, key), depth + 1);
          if (!value) return value;
          (*value)->line = line;
          node->members.emplace_back(key, std::move(*value));
        }
        for (const auto& [source, line] : merged) {
          if (auto error = merge(source, line, path, depth, *node)) return std::move(*error);
        }
        break;
      }
    }
    return node;
  }

 private:
  // YAML 1.1's "<<: *name" or "<<: [*a, *b]", which yaml-cpp hands out as a key: members that `into` lacks come from
  // the mapping; the first that has one gives it.
  std::optional<Error> merge(const YAML::Node& source, int line, const std::string& path, int depth, Node& into) {
    if (source.IsSequence() && source.size() > 0 && depth < kMaxDepth) {
      for (const auto& one : source) {
        if (auto error = merge(one, line, path, depth + 1, into)) return error;
      }
      return std::nullopt;
    }
    if (!source.IsMap()) {
      return Error(Errc::malformed, place(file_, line) + ": " + join_path(path, "<<") +
                                        ": merges a group of keys (<<: *name) or a list of them, nothing else");
    }
    auto group = convert(source, path, depth + 1);
    if (!group) return std::move(group).error();
    for (auto& member : (*group)->members) {
      if (into.find(member.first) == nullptr) into.members.push_back(std::move(member));
    }
    return std::nullopt;
  }

  const std::string& file_;
  std::size_t count_ = 0;
};

// Sees that a document has content, and where it began.
class ContentProbe final : public YAML::EventHandler {
 public:
  bool content = false;
  int line = 0;

  void OnDocumentStart(const YAML::Mark& mark) override { line = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { line = mark.line + 1; }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { found(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override {
    found(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    found(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    found(mark);
  }
  void OnMapEnd() override {}

 private:
  void found(const YAML::Mark& mark) {
    if (!content) line = mark.line + 1;
    content = true;
  }
};

// What follows the first document. yaml-cpp's Load would ignore it without a word, and its LoadAll never comes back
// from a ',' or ']' between documents (found by fuzzing, 0.7).
std::optional<Error> check_nothing_follows(const std::string& text, const std::string& file) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  ContentProbe first;
  if (!parser.HandleNextDocument(first) || !parser) return std::nullopt;
  ContentProbe second;
  (void)parser.HandleNextDocument(second);
  if (second.content) {
    return Error(Errc::malformed,
                 place(file, second.line) + ": a second document starts here; only one is allowed in the file");
  }
  if (parser) return Error(Errc::malformed, place(file, second.line) + ": not valid YAML: unexpected text");
  return std::nullopt;
}

}  // namespace

Result<std::shared_ptr<Node>> parse_yaml(const std::string& text, const std::string& file) {
  try {
    if (auto error = check_nothing_follows(text, file)) return std::move(*error);
    const YAML::Node document = YAML::Load(text);
    if (!document.IsDefined()) return std::make_shared<Node>();
    return Converter(file).convert(document, "", 0);
  } catch (const YAML::Exception& e) {
    const int line = e.mark.is_null() ? 0 : e.mark.line + 1;
    std::string hint;
    if (e.msg.find("flow") != std::string::npos && text.find("${") != std::string::npos) {
      hint = "; inside of { } and [ ] a value with ${...} must be quoted: \"${NAME}/file\"";
    }
    return Error(Errc::malformed, place(file, line) + ": not valid YAML: " + e.msg + hint);
  }
}

}  // namespace ddprun::config_tree
