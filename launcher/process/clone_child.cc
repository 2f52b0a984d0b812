#include "launcher/process/clone_child.h"

#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace ddprun::launcher {
namespace {

#if defined(__x86_64__)
// The C library has no wrapper for clone3. The child comes back from the system call on its new, empty stack, so it
// must not return into C++: it calls `run` from here.
long clone3_and_run(struct clone_args* arguments, int (*run)(void*), void* argument) {
  long result = SYS_clone3;
  register int (*function)(void*) asm("r12") = run;
  register void* first asm("r13") = argument;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %%r13, %%rdi\n\t"
      "call *%%r12\n\t"
      "mov %%eax, %%edi\n\t"
      "mov %[exit], %%eax\n\t"
      "syscall\n"
      "1:\n\t"
      : "+a"(result)
      : "D"(arguments), "S"(sizeof *arguments), "r"(function), "r"(first), [exit] "i"(SYS_exit)
      : "rcx", "r11", "memory", "cc");
  return result;
}

pid_t try_clone3(int (*run)(void*), void* argument, void* stack, std::size_t stack_bytes, int cgroup_fd) {
  struct clone_args arguments = {};
  arguments.flags = CLONE_VM | CLONE_VFORK | (cgroup_fd >= 0 ? CLONE_INTO_CGROUP : 0);
  arguments.exit_signal = SIGCHLD;
  arguments.stack = reinterpret_cast<std::uintptr_t>(stack);
  arguments.stack_size = stack_bytes;
  arguments.cgroup = cgroup_fd >= 0 ? static_cast<std::uint64_t>(cgroup_fd) : 0;
  return static_cast<pid_t>(clone3_and_run(&arguments, run, argument));
}
#else
pid_t try_clone3(int (*)(void*), void*, void*, std::size_t, int) { return -1; }
#endif

}  // namespace

pid_t clone_child(int (*run)(void*), void* argument, void* stack, std::size_t stack_bytes, int cgroup_fd) {
  if (cgroup_fd >= 0) {
    const pid_t pid = try_clone3(run, argument, stack, stack_bytes, cgroup_fd);
    if (pid > 0) return pid;
  }
  const pid_t pid = try_clone3(run, argument, stack, stack_bytes, -1);
  if (pid > 0) return pid;
  // A kernel or a container without clone3. (Otherwise not: ThreadSanitizer puts itself into this one.)
  return ::clone(run, static_cast<char*>(stack) + stack_bytes, CLONE_VM | CLONE_VFORK | SIGCHLD, argument);
}

}  // namespace ddprun::launcher
