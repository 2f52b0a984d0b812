#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/types.h"

// What happens to the workers' output: choices only; the pumps are behind output_hub.h.
namespace ddprun::launcher {

// --redirects and --tee: per local rank a mask, 1 = stdout, 2 = stderr, 3 = both.
struct StreamChoice {
  int all = 0;                        // given as one number: it is for every rank
  std::map<std::int64_t, int> ranks;  // given as a map: ranks that are not named get 0

  int of(LocalRank rank) const;
  bool has_stdout(LocalRank rank) const { return (of(rank) & 1) != 0; }
  bool has_stderr(LocalRank rank) const { return (of(rank) & 2) != 0; }
};

struct OutputPolicy {
  StreamChoice redirects;                               // to a file only
  StreamChoice tee;                                     // to a file, and with a prefix to the console
  std::optional<std::set<std::int64_t>> console_ranks;  // --local-ranks-filter: the others are not shown
  std::string prefix_template;                          // "" = "[${role_name}${local_rank}]:"
  std::vector<std::string> duplicate_stdout_filters;    // tee'd lines with one of these also go to filtered_stdout.log
  std::vector<std::string> duplicate_stderr_filters;
  std::uint64_t log_max_size_bytes = 0;  // a log that would grow above it is renamed to .1 (.1 to .2 ...); 0 = never
  int log_keep = 5;                      // how many renamed logs stay
  // A console that takes nothing for this long when all else is done loses the rest (it is in the files if tee'd).
  std::chrono::milliseconds console_patience{30000};
  int console_stdout = 1;  // descriptors of our own console
  int console_stderr = 2;
};

// `${role_name} ${local_rank} ${rank} ${hostname}` filled in; other text stays.
std::string fill_prefix(std::string_view prefix_template, std::string_view role_name, LocalRank local_rank, Rank rank,
                        std::string_view host_name);

}  // namespace ddprun::launcher
