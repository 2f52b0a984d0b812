#include "worker/comm/nccl_env.h"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace ddprun::comm {
namespace {

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> all;
  for (;;) {
    const std::size_t comma = text.find(',');
    if (comma != 0 && !text.empty()) all.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return all;
    text.remove_prefix(comma + 1);
  }
}

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// "eth,ib" are beginnings, "=eth0" whole names, "^docker" what is left out (NCCL's user guide).
Result<void> check_interfaces(const std::string& value, const std::vector<std::string>& interfaces) {
  std::string_view text = value;
  if (text.starts_with('^')) return {};
  const bool exact = text.starts_with('=');
  if (exact) text.remove_prefix(1);
  for (const std::string& wanted : split_list(text)) {
    const std::string name = wanted.substr(0, wanted.find(':'));
    for (const std::string& interface : interfaces) {
      if (exact ? interface == name : interface.starts_with(name)) return {};
    }
  }
  return Error(Errc::invalid_argument,
               fmt::format("NCCL_SOCKET_IFNAME={}: this host has no such network interface; it has {}", value,
                           fmt::join(interfaces, ", ")));
}

// One or more names behind a '^'; newer versions also take "name:list;name:list", which is left to NCCL.
Result<void> check_words(const char* variable, const std::string& value, const std::vector<std::string>& known) {
  if (value.find_first_of(":;") != std::string::npos) return {};
  const std::string_view text = std::string_view(value).substr(value.starts_with('^') ? 1 : 0);
  for (const std::string& word : split_list(text)) {
    if (std::any_of(known.begin(), known.end(), [&word](const std::string& k) { return same_word(k, word); })) continue;
    const auto near = nearest_name(word, known);
    return Error(Errc::invalid_argument,
                 fmt::format("{}={}: '{}' is not known{}; NCCL has {}", variable, value, word,
                             near ? ": did you mean '" + *near + "'?" : "", fmt::join(known, ", ")));
  }
  return {};
}

}  // namespace

Result<void> check_nccl_environment(const EnvLookup& env, const std::vector<std::string>& interfaces) {
  const auto given = [&env](const char* name) { return env(name).value_or(""); };
  Result<void> good;
  if (const std::string value = given("NCCL_SOCKET_IFNAME"); !value.empty()) good = check_interfaces(value, interfaces);
  if (const std::string value = given("NCCL_ALGO"); good && !value.empty()) {
    good =
        check_words("NCCL_ALGO", value, {"Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"});
  }
  if (const std::string value = given("NCCL_PROTO"); good && !value.empty()) {
    good = check_words("NCCL_PROTO", value, {"LL", "LL128", "Simple"});
  }
  return good;
}

std::vector<std::string> network_interfaces() {
  std::vector<std::string> names;
  struct if_nameindex* const all = ::if_nameindex();
  for (const struct if_nameindex* one = all; one != nullptr && one->if_index != 0; ++one)
    names.emplace_back(one->if_name);
  if (all != nullptr) ::if_freenameindex(all);
  return names;
}

}  // namespace ddprun::comm
