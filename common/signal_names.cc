#include "common/signal_names.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace ddprun {

static_assert(kSigInt == SIGINT && kSigQuit == SIGQUIT && kSigKill == SIGKILL && kSigTerm == SIGTERM);

std::string signal_name(int number) {
  const char* known = ::sigabbrev_np(number);
  return "SIG" + (known != nullptr ? std::string(known) : std::to_string(number));
}

std::optional<int> signal_number(std::string_view name) {
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && end == name.data() + name.size() && number >= 1 && number < NSIG) return number;
  std::string abbreviation(name);
  std::transform(abbreviation.begin(), abbreviation.end(), abbreviation.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (abbreviation.starts_with("SIG")) abbreviation.erase(0, 3);
  for (int candidate = 1; candidate < NSIG; ++candidate) {
    const char* known = ::sigabbrev_np(candidate);
    if (known != nullptr && abbreviation == known) return candidate;
  }
  return std::nullopt;
}

}  // namespace ddprun
