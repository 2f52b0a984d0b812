#pragma once

namespace ddprun {

// Opens /dev/null for each of standard input, output and error that is closed. To be called first in a program: a
// later open() or socket() would get the number, and what somebody prints would go into that file or connection.
void open_standard_fds();

}  // namespace ddprun
