#pragma once

#include <optional>
#include <string>
#include <string_view>

// Signals by name, and the numbers that pure code needs (Linux's; <signal.h> is not for it. signal_names.cc asserts
// that they are right).
namespace ddprun {

enum class SignalScope { worker, group };  // a worker process alone, or its whole process group

inline constexpr int kSigInt = 2;
inline constexpr int kSigQuit = 3;
inline constexpr int kSigKill = 9;
inline constexpr int kSigTerm = 15;

// "SIGTERM"; one without a name (a real-time signal) "SIG42".
std::string signal_name(int number);

// "SIGTERM", "term" or "15" -> 15; nullopt for an unknown name.
std::optional<int> signal_number(std::string_view name);

}  // namespace ddprun
