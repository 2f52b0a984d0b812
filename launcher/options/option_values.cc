#include "launcher/options/option_values.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "launcher/options/options.h"

namespace ddprun::launcher {
namespace {

Error bad(std::string message) { return Error(Errc::invalid_argument, std::move(message)); }

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

struct LimitName {
  std::string_view name;
  int resource;
};
constexpr std::array<LimitName, 11> kLimits{{
    {"address-space", RLIMIT_AS},
    {"core", RLIMIT_CORE},
    {"cpu", RLIMIT_CPU},
    {"data", RLIMIT_DATA},
    {"fsize", RLIMIT_FSIZE},
    {"locks", RLIMIT_LOCKS},
    {"memlock", RLIMIT_MEMLOCK},
    {"nofile", RLIMIT_NOFILE},
    {"nproc", RLIMIT_NPROC},
    {"rss", RLIMIT_RSS},
    {"stack", RLIMIT_STACK},
}};

}  // namespace

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  if (text.empty()) return out;
  std::size_t start = 0;
  while (true) {
    const auto end = text.find(separator, start);
    out.emplace_back(text.substr(start, end == std::string_view::npos ? end : end - start));
    if (end == std::string_view::npos) return out;
    start = end + 1;
  }
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\n") - first + 1));
}

std::vector<std::string> split_escaped_commas(std::string_view text) {
  std::vector<std::string> out;
  std::string item;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      item += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      item += ',';
      ++i;
    } else {
      if (!item.empty()) out.push_back(std::move(item));
      item.clear();
    }
  }
  if (!item.empty()) out.push_back(std::move(item));
  return out;
}

std::int64_t mig_instances(const std::vector<std::string>& devices) {
  return std::count_if(devices.begin(), devices.end(), [](const auto& d) { return trimmed(d).starts_with("MIG-"); });
}

Result<std::int64_t> parse_integer(std::string_view text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || text.empty()) {
    return bad(fmt::format("'{}' is not a whole number", text));
  }
  if (value < min || value > max) {
    if (max == std::numeric_limits<std::int64_t>::max()) return bad(fmt::format("{} is below {}", value, min));
    return bad(fmt::format("{} is not in {}..{}", value, min, max));
  }
  return value;
}

Result<std::uint64_t> parse_size(std::string_view text) {
  std::string_view digits = text;
  std::uint64_t factor = 1;
  if (!digits.empty()) {
    constexpr std::string_view kUnits = "KMGT";
    const auto unit = kUnits.find(upper(digits.substr(digits.size() - 1)));
    if (unit != std::string_view::npos) {
      factor = 1ULL << (10 * (unit + 1));
      digits.remove_suffix(1);
    }
  }
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failure != std::errc() || end != digits.data() + digits.size() || digits.empty()) {
    return bad(fmt::format("'{}' is not a size such as 1048576, 64K or 4G", text));
  }
  if (value > std::numeric_limits<std::uint64_t>::max() / factor) return bad(fmt::format("'{}' is too large", text));
  return value * factor;
}

Result<std::chrono::milliseconds> parse_seconds(std::string_view text) {
  // from_chars for doubles takes neither a plus sign nor spaces: just what we want.
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || text.empty() || !std::isfinite(value)) {
    return bad(fmt::format("'{}' is not a number of seconds", text));
  }
  constexpr double kYear = 365.0 * 24 * 3600;
  if (value < 0 || value > kYear) return bad(fmt::format("{} s is not in 0..{} s", text, static_cast<long>(kYear)));
  return std::chrono::milliseconds(std::llround(value * 1000));
}

Result<std::pair<std::uint16_t, std::uint16_t>> parse_port_range(std::string_view text) {
  const auto middle = text.find_first_of("-:");
  if (middle == std::string_view::npos) {
    return bad(fmt::format("'{}' is not a range such as 20000-60000 (one port P is P-P)", text));
  }
  auto first = parse_integer(text.substr(0, middle), 1, 65535);
  if (!first) return std::move(first).error();
  auto last = parse_integer(text.substr(middle + 1), 1, 65535);
  if (!last) return std::move(last).error();
  if (*first > *last) return bad(fmt::format("the first port {} is above the last {}", *first, *last));
  return std::pair<std::uint16_t, std::uint16_t>(*first, *last);
}

Result<std::vector<std::pair<int, std::uint64_t>>> parse_limits(std::string_view text) {
  std::vector<std::pair<int, std::uint64_t>> out;
  for (const auto& item : split(text, ',')) {
    const auto equals = item.find('=');
    if (equals == std::string::npos) return bad(fmt::format("'{}' is not NAME=VALUE", item));
    const std::string name = item.substr(0, equals), value = item.substr(equals + 1);
    const auto known =
        std::find_if(kLimits.begin(), kLimits.end(), [&name](const LimitName& limit) { return limit.name == name; });
    if (known == kLimits.end()) {
      std::string names;
      for (const auto& limit : kLimits) names += (names.empty() ? "" : ", ") + std::string(limit.name);
      return bad(fmt::format("there is no limit '{}'; known are {}", name, names));
    }
    if (value == "unlimited") {
      out.emplace_back(known->resource, static_cast<std::uint64_t>(RLIM_INFINITY));
      continue;
    }
    auto size = parse_size(value);
    if (!size) return std::move(size).error().with_context(name);
    out.emplace_back(known->resource, *size);
  }
  return out;
}

std::string limit_name(int resource) {
  for (const auto& limit : kLimits) {
    if (limit.resource == resource) return std::string(limit.name);
  }
  return fmt::format("RLIMIT {}", resource);
}

Result<StreamChoice> parse_stream_choice(const std::string& text) {
  StreamChoice map;
  if (text.find(':') == std::string::npos) {
    auto mask = parse_integer(trimmed(text), 0, 3);
    if (!mask) return bad(fmt::format("'{}' is neither 0, 1, 2 or 3 nor RANK:MASK,RANK:MASK", text));
    map.all = static_cast<int>(*mask);
    return map;
  }
  for (const auto& item : split(text, ',')) {
    const auto colon = item.find(':');
    if (colon == std::string::npos) return bad(fmt::format("'{}' is not RANK:MASK", item));
    auto rank = parse_integer(trimmed(item.substr(0, colon)), 0, std::numeric_limits<std::int64_t>::max());
    auto mask = parse_integer(trimmed(item.substr(colon + 1)), 0, 3);
    if (!rank || !mask) {
      return bad(fmt::format("'{}' is not a local rank and 0 (none), 1 (stdout), 2 (stderr) or 3 (both)", item));
    }
    map.ranks[*rank] = static_cast<int>(*mask);
  }
  return map;
}

}  // namespace ddprun::launcher
