#pragma once

// Linux's numbers, here because <signal.h> is not for pure code; spawn.cc asserts that they are right.
namespace ddprun::launcher {

inline constexpr int kSigInt = 2;
inline constexpr int kSigQuit = 3;
inline constexpr int kSigKill = 9;
inline constexpr int kSigTerm = 15;

}  // namespace ddprun::launcher
