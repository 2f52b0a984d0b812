#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace ddprun::data {

// Cuts `text` as GPT-2's pattern does: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// with \s as Python has it. Nothing is lost: the words together are the text. A byte that is no UTF-8 counts as a sign.
class WordSplitter {
 public:
  explicit WordSplitter(std::string_view text);  // `text` must live as long
  ~WordSplitter();

  std::string_view next();  // empty: that was all

 private:
  struct State;
  std::string_view text_;
  std::size_t at_ = 0;
  std::unique_ptr<State> state_;
};

}  // namespace ddprun::data
