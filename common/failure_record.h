#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/types.h"

namespace ddprun {

// One worker that failed, as every node of the job sees it: filled by its agent, stamped by the rendezvous, sent to
// all. Texts are cut to the bounds of rdzv_protocol.h before they travel.
struct FailureRecord {
  Rank rank;
  LocalRank local_rank;
  GroupRank group_rank;
  Round round;
  std::int64_t restart_count = 0;  // the attempt it belongs to
  std::string host;                // host name of its node, as the node gave it
  std::int64_t pid = 0;
  int exit_code = 0;  // 0 when a signal ended it
  int signal = 0;     // 0 when it exited by itself
  // When it ended: the rendezvous's system clock at the report's arrival less the age that the agent measured.
  std::chrono::milliseconds unix_time{0};
  bool out_of_memory = false;
  bool stopped_by_us = false;  // we had signalled it before: an echo of another failure
  std::vector<std::string> last_lines;
  std::string error_file_json;  // torch's error file, if it wrote one
  std::vector<std::string> log_paths;
  std::string message;  // set when no worker ran: "cannot start rank 3: exec /x: Permission denied"
};

}  // namespace ddprun
