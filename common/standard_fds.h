#pragma once

#include <string_view>

namespace ddprun {

// Opens /dev/null for each of standard input, output and error that is closed. To be called first in a program: a
// later open() or socket() would get the number, and what somebody prints would go into that file or connection.
void open_standard_fds();

// Prints a program's result. Says nothing of what cannot be written: exit_code_after_output() does.
void print_output(std::string_view text);

// For programs whose output is their result, at their end: `code`, but kFailure with a line on stderr where `code` is 0
// and standard output has lost something (a full disk).
int exit_code_after_output(const char* program, int code);

}  // namespace ddprun
