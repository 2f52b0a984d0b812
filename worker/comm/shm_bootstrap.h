#pragma once

#include <sys/types.h>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "worker/comm/key_value.h"

// How the ranks of one host get hold of the same memory: local rank 0 makes a memfd and hands it out over an abstract
// unix socket. It sets `key` in the store to "<socket name in hex> <token>"; the name is the kernel's choice, the token
// 128 random bits. Each of the others sends, in one message,
//   u64 magic, u32 version, u32 local rank, u32 rank, u32 pid, u32 local size, 32 bytes token   and its own pidfd,
// and gets, once all have come,
//   u64 magic, u32 version, u32 local size, then (u32 rank, u32 pid) of each   with the memfd and everybody's pidfd.
// A pidfd that its owner opened works in any pid namespace. Peers of another user are refused (SO_PEERCRED).
namespace ddprun::comm {

struct ShmPlace {
  std::string key;  // "/ddprun/shm/<restart count>/<group rank>"
  int rank = 0;
  int local_rank = 0;
  int local_size = 1;
};

struct ShmMember {
  int rank = 0;
  pid_t pid = 0;  // as the member sees itself
  UniqueFd pidfd;
};

struct ShmSetup {
  int local_rank = 0;
  UniqueFd memory;                 // empty memfd of size 0, the same on all
  std::vector<ShmMember> members;  // by local rank
};

// Errors: timed_out naming the local ranks that did not come (or that local rank 0 did not answer), invalid_argument
// when they disagree on their number, system.
Result<ShmSetup> connect_shm(KeyValue& store, const ShmPlace& place, TimePoint deadline);

}  // namespace ddprun::comm
