#include "launcher/output/output.h"

#include <array>
#include <utility>

#include "common/printable.h"

namespace ddprun::launcher {

int StreamChoice::of(LocalRank rank) const {
  if (ranks.empty()) return all;
  const auto found = ranks.find(rank.value);
  return found == ranks.end() ? 0 : found->second;
}

std::string fill_prefix(std::string_view prefix_template, std::string_view role_name, LocalRank local_rank, Rank rank,
                        std::string_view host_name) {
  const std::string local = std::to_string(local_rank.value), global = std::to_string(rank.value);
  // Colours of the template are the user's wish; those of a name are not.
  const std::string role = printable(role_name), host = printable(host_name);
  const std::array<std::pair<std::string_view, std::string_view>, 4> macros{
      {{"${role_name}", role}, {"${local_rank}", local}, {"${rank}", global}, {"${hostname}", host}}};
  if (prefix_template.empty()) prefix_template = "[${role_name}${local_rank}]:";
  std::string out;
  while (!prefix_template.empty()) {
    bool replaced = false;
    for (const auto& [macro, value] : macros) {
      if (prefix_template.substr(0, macro.size()) != macro) continue;
      out += value;
      prefix_template.remove_prefix(macro.size());
      replaced = true;
      break;
    }
    if (replaced) continue;
    out += prefix_template.front();
    prefix_template.remove_prefix(1);
  }
  return out;
}

}  // namespace ddprun::launcher
