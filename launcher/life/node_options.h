#pragma once

#include <chrono>
#include <cstdint>

#include "common/job_settings.h"
#include "common/types.h"

namespace ddprun::launcher {

enum class OnSilence { stop, keep };  // what happens to workers when the rendezvous is silent for T_lease

// What a node's life depends on (node_life.h).
struct NodeOptions {
  RunId run_id;
  Endpoint endpoint;  // for words
  std::int64_t nproc = 1;
  JobSettings job;
  OnSilence on_silence = OnSilence::stop;
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::chrono::milliseconds restart_backoff{0};  // before the first restart; doubled for each more, at most 60 s
  bool signal_groups = false;                    // --signal-scope=group: stop signals go to helpers at once, too
  bool wait_for_helpers = false;                 // --leftovers=wait: what workers left behind may take its time
};

}  // namespace ddprun::launcher
