#include "common/rdzv_greeting.h"

namespace ddprun::rdzv {
namespace {

constexpr std::string_view kEmbedded = "embedded";
constexpr std::string_view kOf = " of ";
constexpr std::string_view kOnlyOf = " only of ";

}  // namespace

std::string embedded_greeting(const RunId& owner, bool only) {
  std::string text(kEmbedded);
  if (!owner.value.empty()) text.append(only ? kOnlyOf : kOf).append(owner.value);
  return text;
}

EmbeddedGreeting read_embedded_greeting(std::string_view why, const RunId& mine) {
  EmbeddedGreeting greeting;
  if (!why.starts_with(kEmbedded)) return greeting;
  greeting.embedded = true;
  why.remove_prefix(kEmbedded.size());
  const bool only = why.starts_with(kOnlyOf);
  if (!only && !why.starts_with(kOf)) return greeting;
  why.remove_prefix(only ? kOnlyOf.size() : kOf.size());
  greeting.foreign = why != mine.value;
  greeting.refuses = only && greeting.foreign;
  return greeting;
}

}  // namespace ddprun::rdzv
