#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/hosts/host_job.h"

// The last word of a job over a host list: which host, which rank, why; and the exit code. Pure.
namespace ddprun::launcher::hosts {

struct Verdict {
  int code = 0;
  std::string text;  // whole lines, each beginning with "ddprun: "; "" = all went well and nothing is to be said
};

// `hosts`: names as in the list. `stopped_by`: the signal that ended the job, 0 = none.
//   The code is that of the host whose worker failed first, as its launcher tells it; a job that was stopped has 75
//   where every host says 75 (saved, start me again), else 128 + signal; lost and missing hosts have 69. Hosts that
//   were not needed (--nnodes=MIN:MAX) change nothing where the others ended well.
Verdict give_verdict(const std::vector<std::string>& hosts, const std::vector<HostEnd>& ends, std::size_t min_hosts,
                     bool started, int stopped_by);

}  // namespace ddprun::launcher::hosts
