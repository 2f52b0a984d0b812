#include "launcher/process/stdin_policy.h"

#include <charconv>
#include <string>

namespace ddprun::launcher {

Result<StdinPolicy> parse_stdin_policy(std::string_view text) {
  StdinPolicy policy;
  if (text == "auto") return policy;
  policy.kind = text == "all"    ? StdinPolicy::Kind::all
                : text == "none" ? StdinPolicy::Kind::none
                                 : StdinPolicy::Kind::one;
  if (policy.kind != StdinPolicy::Kind::one || text == "first") return policy;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), policy.rank.value);
  if (ec != std::errc() || end != text.data() + text.size() || policy.rank.value < 0) {
    return Error(Errc::invalid_argument, "'" + std::string(text) + "' is none of auto, first, all, none, a local rank");
  }
  return policy;
}

}  // namespace ddprun::launcher
