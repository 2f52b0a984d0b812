#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/membership/membership.h"

namespace ddprun::rendezvous {

// Runs the text scenarios of tests/testdata/membership: a command, "----", what Membership did.
//   join NODE [host=H] [nproc=N] [nnodes=MIN:MAX] [last=R] [rank=K] [topology=T] [role=R] [address=A] [restarts=N]
//   [static]
//        [join=S] [last_call=S] [keep_alive=S] [crash_loop=N]     times in seconds; unnamed values as in the last join
//   register NODE round=R group=G of=N first=F world=W [restarts=N] [state=running|finished|resumable|stopping] + as
//   join fail NODE rank=R [round=R] [code=C] [signal=S] [permanent] [age=MS] [echo] [quick] done NODE [round=R]
//   [resume_me] leave NODE [REASON]      close NODE      silent NODE      heard NODE after MS                 time
//   passes; all nodes but silent and closed ones are heard every second why | status | drain NODE | stop |
//   restart-daemon
class MembershipScenario {
 public:
  // The output for one command.
  std::string run(const std::string& command);

 private:
  using Arguments = std::map<std::string, std::string>;
  rdzv::NodeInfo node(const std::string& name, const Arguments& arguments);
  std::string render(const Actions& actions);
  std::string pass(Duration time);

  Membership membership_{RunId("job")};
  rdzv::NodeInfo defaults_;
  std::map<std::string, int> numbers_;
  std::map<std::string, rdzv::NodeInfo> nodes_;
  std::set<std::string> quiet_;  // silent or closed
  TimePoint start_{std::chrono::seconds(1000)};
  TimePoint now_ = start_;
};

}  // namespace ddprun::rendezvous
