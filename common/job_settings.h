#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/enum_words.h"

// What all nodes of a job must agree on. Options fill it, a Join carries it, the rendezvous decides by it. One more
// setting is a member here, a row in rdzv_fields.h and a row in the option table.
namespace ddprun {

inline constexpr std::chrono::milliseconds kMaxDuration{315'360'000'000};  // ten years: of all that travels
// A lease that is long keeps the next world waiting for a node that is cut off, and blocks a run id after its end.
inline constexpr std::chrono::milliseconds kMaxLease{600'000};

enum class RdzvBackend : std::uint8_t { c10d = 0, static_ranks = 1 };
constexpr auto words(RdzvBackend) {
  return std::to_array<EnumWord<RdzvBackend>>({{RdzvBackend::c10d, "c10d"}, {RdzvBackend::static_ranks, "static"}});
}

// Defaults are torch 2.15's where it has the setting; the option tables and the README show the values from here.
struct JobSettings {
  RdzvBackend backend = RdzvBackend::c10d;
  std::int64_t nnodes_min = 1;
  std::int64_t nnodes_max = 1;
  std::int64_t max_restarts = 0;
  std::chrono::milliseconds join_timeout{600'000};      // until MIN nodes are here
  std::chrono::milliseconds last_call_timeout{30'000};  // after MIN, for more
  std::chrono::milliseconds close_timeout{30'000};      // exit barrier, once no worker runs any more
  std::chrono::milliseconds keep_alive_interval{5'000};
  std::int64_t keep_alive_max_attempt = 3;
  std::int64_t crash_loop_limit = 0;                   // so many quick failures in a row end the job; 0 = off
  std::chrono::milliseconds crash_loop_window{5'000};  // an attempt that fails within this is a quick failure

  // How long silence must last until a node's workers must have ended. Bounded as every duration here is: in
  // nanoseconds the bare product would not fit.
  std::chrono::milliseconds lease() const {
    return std::min(keep_alive_interval * keep_alive_max_attempt, kMaxDuration);
  }
};

// For a lease above kMaxLease: "keep_alive_interval x keep_alive_max_attempt is 700 s; at most 600 s are allowed".
std::string lease_too_long(const JobSettings& job);

// The first thing that two nodes say differently: "--nnodes", "2:4", "2".
struct SettingsDiffer {
  std::string option;
  std::string left;
  std::string right;
};
std::optional<SettingsDiffer> first_difference(const JobSettings& left, const JobSettings& right);

}  // namespace ddprun
