#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

// The words of an enumeration, listed once. Beside the enumeration stands, found by its argument:
//   constexpr auto words(Colour) { return std::to_array<EnumWord<Colour>>({{Colour::red, "red"}, ...}); }
// It names every enumerator. What reads a number or a word knows from it what there is.
namespace ddprun {

template <typename Enum>
struct EnumWord {
  Enum value;
  std::string_view word;
};

// "" for a value that the list does not name.
template <typename Enum>
constexpr std::string_view to_word(Enum value) {
  for (const EnumWord<Enum>& entry : words(Enum())) {
    if (entry.value == value) return entry.word;
  }
  return "";
}

template <typename Enum>
constexpr std::optional<Enum> from_word(std::string_view word) {
  for (const EnumWord<Enum>& entry : words(Enum())) {
    if (entry.word == word) return entry.value;
  }
  return std::nullopt;
}

template <typename Enum>
inline constexpr std::size_t kEnumSize = words(Enum()).size();

}  // namespace ddprun
