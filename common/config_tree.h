#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"

// YAML text as a tree of ours, for common/config.cc alone: yaml-cpp stays behind config_tree.cc.
namespace ddprun::config_tree {

enum class Kind { null, scalar, sequence, mapping };

// Our own tree: yaml-cpp keeps duplicate keys and knows nothing of what was read.
struct Node {
  Kind kind = Kind::null;
  std::string text;
  bool quoted = false;
  int line = 0;                                                        // 1-based; 0 = from --set
  bool known = false;                                                  // somebody read this key
  std::vector<std::pair<std::string, std::shared_ptr<Node>>> members;  // in file order
  std::vector<std::shared_ptr<Node>> items;
  std::shared_ptr<Node> shorthand;  // "loss: mse" that --set loss.x=y turned into a mapping

  Node* find(std::string_view key) const {
    for (const auto& [name, node] : members) {
      if (name == key) return node.get();
    }
    return nullptr;
  }
};

std::string join_path(const std::string& prefix, std::string_view key);  // "data.train"
std::string place(const std::string& file, int line);                    // "file.yaml:12"; line 0: just the file

// Errors: malformed with file:line (syntax, a key that is there twice, a second document, too deep or too large).
Result<std::shared_ptr<Node>> parse_yaml(const std::string& text, const std::string& file);

}  // namespace ddprun::config_tree
