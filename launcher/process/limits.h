#pragma once

#include <string>

#include "common/error.h"

namespace ddprun::launcher {

// Words for errors about what a process may use; each as it is now.

// "ulimit -u is 4 for this user; pids.max is 100 in control group /job"
std::string process_limit_text();
// "ulimit -n is 64"
std::string descriptor_limit_text();
// "Linux 4.18.0"
std::string kernel_text();

// Of a system call that starting or watching a process needs: EAGAIN and EMFILE become exhausted, with our
// limit; ENFILE and ENOMEM, which are the whole host's, exhausted without; ENOSYS and EPERM become unsupported, with
// the kernel; all else as Error::from_errno().
Error start_error(int error_number, std::string what);

}  // namespace ddprun::launcher
