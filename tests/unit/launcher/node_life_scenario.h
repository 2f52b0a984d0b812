#pragma once

#include <map>
#include <memory>
#include <string>

#include "launcher/life/node_life.h"

namespace ddprun::launcher {

// Runs the text scenarios of tests/testdata/node_life: a command, "----", what the machine did.
//   node [nproc=N] [restarts=N] [shutdown=MS] [join=MS] [close=MS] [backoff=MS] [keep] [wait_for_helpers]
//   [signal_groups] [manual]
//                             first of all; "manual": AcceptRound and StartWorkers are not answered by themselves
//   assign ROUND [restarts=N] [first=R] [world=W] [group=G] [of=N]
//   accepted | started | start-fails [code=C] [permanent] WHY | join-fails WHY
//   exit R [code=C] [signal=S] [asked] [guard] [round=N]     worker with local rank R ended
//   drained [round=N]
//   restart ROUND REASON | finished | resume-me | fail RANK [code=C] [signal=S] REASON | too-few REASON | drain REASON
//   | stop-job REASON | refused REASON | refused-for-now REASON lease | hopeless WHY | signal N | pause MS link up |
//   link down [embedded]                           up: the rendezvous answers once a second after MS time passes; every
//   tick that did something is shown
class NodeLifeScenario {
 public:
  std::string run(const std::string& command);  // the output for one command

 private:
  std::string render(const NodeActions& actions);
  std::string event(const NodeEvent& event) { return render(life_->on(event, now_)); }
  std::string pass(Duration time);
  void feed_link();

  std::unique_ptr<NodeLife> life_;
  bool manual_ = false;
  bool up_ = true;
  Link link_;
  Round round_;
  std::string phase_ = "fresh";
  TimePoint start_{std::chrono::seconds(1000)};
  TimePoint now_ = start_;
};

}  // namespace ddprun::launcher
