#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

// What is executed to get a ddprun on another host. Pure.
namespace ddprun::launcher {

// The one argument of a ddprun that serves a node of a host list: what it is to do comes over its standard input, so
// that nothing of it (variables, the program's arguments) shows in a list of processes or passes a remote shell.
inline constexpr std::string_view kNodeWord = "__node-of-a-host-list";

// A command line in words, as a shell splits it: spaces separate, '...', "..." and \ quote. Nothing is expanded.
// Errors: invalid_argument: no word, a quote that does not end.
Result<std::vector<std::string>> split_words(std::string_view text);

// One word for the user's shell on the other side: sh, bash, zsh, csh, tcsh and fish read it alike.
std::string shell_quoted(std::string_view word);

// argv of the remote shell: {"ssh", ..., host, "'/opt/ddprun' __node-of-a-host-list"}.
// Errors: invalid_argument: a path that no shell takes in one line.
Result<std::vector<std::string>> remote_command(const std::vector<std::string>& remote_shell, const std::string& host,
                                                const std::string& ddprun);

}  // namespace ddprun::launcher
