#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "common/clock.h"
#include "common/types.h"

namespace ddprun::rendezvous {

// Nodes that come and go: a pod in a crash loop must not start the whole job anew each time. Pure. A node that goes
// within kShortStay of its coming counts against its host; from the second time on nodes of that host must stay a while
// before a world is begun anew for them, twice as long each time. Where each pod has another host name, the rounds that
// ended so count against all newcomers of the job. What is older than kForget is forgotten.
class Damping {
 public:
  static constexpr auto kShortStay = std::chrono::seconds(60);
  static constexpr auto kForget = std::chrono::minutes(10);
  static constexpr auto kFirst = std::chrono::seconds(20);
  static constexpr auto kMost = std::chrono::seconds(300);
  static constexpr auto kMostForAll = std::chrono::seconds(60);
  static constexpr int kFree = 1;        // times that a host may do it
  static constexpr int kFreeForAll = 3;  // rounds that may end so
  static constexpr std::size_t kHostsKept = 1'000;

  // A node went. `round`: that ended by it; 0: it was in none. True: it counts, and nodes of its host must now stay.
  bool went(const std::string& host, Duration stayed, Round round, TimePoint now);
  // How long a node of this host must stay before a world is begun anew for it; 0 = as anybody.
  Duration patience(const std::string& host, TimePoint now) const;
  int times(const std::string& host) const;  // that nodes of this host went soon

 private:
  struct Record {
    int times = 0;
    TimePoint last;
  };
  static void count(Record& record, TimePoint now);

  std::map<std::string, Record> hosts_;
  Record rounds_;
  Round last_round_;
};

}  // namespace ddprun::rendezvous
