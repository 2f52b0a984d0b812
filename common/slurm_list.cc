#include "common/slurm_list.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace ddprun {
namespace {

constexpr std::size_t kMaxDigits = 18;  // fits an int64

Error bad(std::string_view text, std::string_view why) {
  constexpr std::size_t kShown = 200;
  const std::string_view shown = text.substr(0, kShown);
  return Error(Errc::malformed,
               fmt::format("'{}{}' is no list: {}", shown, shown.size() < text.size() ? "..." : "", why));
}

std::optional<std::int64_t> number(std::string_view digits) {
  std::int64_t value = 0;
  if (digits.empty() || digits.size() > kMaxDigits) return std::nullopt;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failure != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

// The parts between commas that stand in no bracket. nullopt: brackets do not match.
std::optional<std::vector<std::string_view>> entries(std::string_view text) {
  std::vector<std::string_view> out;
  bool inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == ']') {
      if (inside == (text[i] == '[')) return std::nullopt;
      inside = !inside;
    }
    if (text[i] != ',' || inside) continue;
    out.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  if (inside) return std::nullopt;
  out.push_back(text.substr(begin));
  return out;
}

// "1-3,07-08" -> 1 2 3 07 08
Result<std::vector<std::string>> numbers(std::string_view text, std::string_view whole) {
  std::vector<std::string> out;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const auto dash = item.find('-');
    const std::string_view low = item.substr(0, dash);
    const auto first = number(low);
    const auto last = dash == std::string_view::npos ? first : number(item.substr(dash + 1));
    if (!first || !last || *first > *last) return bad(whole, fmt::format("'{}' is neither N nor N-M", item));
    if (static_cast<std::size_t>(*last - *first) >= kMaxHosts - out.size()) return bad(whole, "it is too long");
    for (std::int64_t i = *first; i <= *last; ++i) out.push_back(fmt::format("{:0{}}", i, low.size()));
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

Result<std::vector<std::string>> expand_host_list(std::string_view text) {
  const auto parts = entries(text);
  if (!parts) return bad(text, "a bracket is left open, or stands in another one");
  std::vector<std::string> out;
  for (std::string_view entry : *parts) {
    if (entry.empty()) return bad(text, "there is an empty entry");
    std::vector<std::string> names{""};
    while (!entry.empty()) {
      const auto open = entry.find('[');
      for (auto& name : names) name += entry.substr(0, open);
      if (open == std::string_view::npos) break;
      const auto close = entry.find(']');
      auto inner = numbers(entry.substr(open + 1, close - open - 1), text);
      if (!inner) return std::move(inner).error();
      if (names.size() * inner->size() > kMaxHosts) return bad(text, "it is too long");
      std::vector<std::string> longer;
      for (const auto& name : names) {
        for (const auto& digits : *inner) longer.push_back(name + digits);
      }
      names = std::move(longer);
      entry.remove_prefix(close + 1);
    }
    if (out.size() + names.size() > kMaxHosts) return bad(text, "it is too long");
    out.insert(out.end(), names.begin(), names.end());
  }
  return out;
}

Result<std::vector<std::int64_t>> expand_counts(std::string_view text) {
  const std::string_view whole = text;
  std::vector<std::int64_t> out;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const auto open = item.find("(x");
    const auto count = number(item.substr(0, open));
    std::optional<std::int64_t> times = 1;
    if (open != std::string_view::npos) {
      times = item.ends_with(')') ? number(item.substr(open + 2, item.size() - open - 3)) : std::nullopt;
    }
    if (!count || !times || *times < 1) return bad(whole, fmt::format("'{}' is neither N nor N(xTIMES)", item));
    if (static_cast<std::size_t>(*times) > kMaxHosts - out.size()) return bad(whole, "it is too long");
    out.insert(out.end(), static_cast<std::size_t>(*times), *count);
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace ddprun
