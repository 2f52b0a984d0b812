#pragma once

#include <chrono>
#include <cstdint>

#include "common/types.h"

namespace ddprun::launcher {

// --rdzv-conf. Defaults are torch 2.15's where it has the key.
struct RendezvousTimes {
  std::chrono::milliseconds join_timeout{600'000};      // until MIN nodes are here
  std::chrono::milliseconds last_call_timeout{30'000};  // after MIN, for more
  std::chrono::milliseconds close_timeout{30'000};      // exit barrier, once no worker runs any more
  std::chrono::milliseconds read_timeout{60'000};       // until the rendezvous answers at all
  std::chrono::milliseconds keep_alive_interval{5'000};
  int keep_alive_max_attempt = 3;
};

enum class OnSilence { stop, keep };  // what happens to workers when the rendezvous is silent for T_lease

// What a node's life depends on (node_life.h).
struct NodeOptions {
  RunId run_id;
  Endpoint endpoint;  // for words
  std::int64_t nproc = 1;
  std::int64_t max_restarts = 0;
  RendezvousTimes times;
  OnSilence on_silence = OnSilence::stop;
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::chrono::milliseconds restart_backoff{0};        // before the first restart; doubled for each more, at most 60 s
  std::chrono::milliseconds crash_loop_window{5'000};  // an attempt that fails within this is a quick failure
  bool signal_groups = false;                          // --signal-scope=group: stop signals go to helpers at once, too
  bool wait_for_helpers = false;                       // --leftovers=wait: what workers left behind may take its time
};

}  // namespace ddprun::launcher
