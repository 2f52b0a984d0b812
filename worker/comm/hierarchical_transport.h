#pragma once

#include <memory>
#include <vector>

#include "worker/comm/shm_group.h"
#include "worker/comm/tcp_ring.h"
#include "worker/comm/transport.h"

namespace ddprun::comm {

// The hosts of a job: host h has ranks first_rank[h] .. first_rank[h] + size[h] - 1, in local order.
struct HostMap {
  std::vector<int> first_rank;  // of each host
  std::vector<int> size;        // ranks of each host
  int host = 0;                 // ours

  int hosts() const { return static_cast<int>(size.size()); }
  int world_size() const { return first_rank.back() + size.back(); }
  int rings() const;  // as many as the smallest host has ranks
  int host_of(int rank) const;
  std::vector<int> ring(int i) const;  // ranks of ring i, by host
};

// Several ranks on each of several hosts: shared memory inside, TCP across. The tensor is cut into as many chunks as
// there are rings; local rank i combines chunk i of its host's memory, sends it round ring i (all rings at once, no
// byte crosses between hosts twice), and stores the result into all memory of its host.
// `ring` is null for local ranks that are in none (other hosts have fewer ranks). Collective over the host: it takes
// memory from the group.
Result<std::unique_ptr<Transport>> make_hierarchical_transport(std::unique_ptr<ShmGroup> group,
                                                               std::unique_ptr<TcpRing> ring, HostMap hosts,
                                                               TimePoint deadline);

}  // namespace ddprun::comm
