#pragma once

#include <sys/types.h>

#include <cstddef>

namespace ddprun::launcher {

// Starts `run(argument)` as a child process that shares our memory, on `stack`, and suspends this thread until the
// child has exec'd or ended. `cgroup_fd` >= 0: the child starts in that version 2 control group (where the kernel and
// the machine allow it; else in ours). Returns its id, or -1 with errno.
pid_t clone_child(int (*run)(void*), void* argument, void* stack, std::size_t stack_bytes, int cgroup_fd);

}  // namespace ddprun::launcher
