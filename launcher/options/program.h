#pragma once

#include <string>
#include <vector>

#include "common/options.h"
#include "common/result.h"

// What is run: python, a binary, a script, something beside us or in PATH. Decides only; looks at files through an
// interface so that tests need none.
namespace ddprun::launcher {

struct FileInfo {
  enum class Kind { missing, file, directory, other };
  Kind kind = Kind::missing;
  bool readable = false;
  bool executable = false;
  std::string head;  // the first bytes, at most 256
  std::string id;    // equal for two names of one file; "" = not known
  int error = 0;     // of a missing one: errno of the look (ENOENT, or ELOOP, EACCES, ENAMETOOLONG ...)
};

class FileLookup {
 public:
  virtual ~FileLookup() = default;
  virtual FileInfo look(const std::string& path) const = 0;
};

// The real one.
const FileLookup& disk_lookup();

struct ProgramRequest {
  std::string program;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::string own_folder;     // where the running ddprun lies, without a slash at the end; "" = not known
  std::string called_folder;  // where it was called by, if by a path: that of a link to it; "" = by its name
};

struct Program {
  std::string executable;            // a path that execve takes
  std::vector<std::string> leading;  // argv up to and including the script: {"/usr/bin/python3", "-u", "train.py"}
  std::string entrypoint;            // what the user would call it, for messages
  std::string script;                // the text that python or a shell reads; "" = none (binary, module)
  std::string python;                // the interpreter; "" = none
  bool wants_unbuffered = false;     // a python script that is executed directly: needs PYTHONUNBUFFERED
  std::string warning;               // for the user, before the start; "" = none
};

// Environment read: PATH, PYTHON_EXEC, VIRTUAL_ENV, CONDA_PREFIX.
// Errors: not_found (exit code 127), system (found, but cannot be executed: exit code 126); each one names the path,
// the reason and what to do.
Result<Program> resolve_program(const ProgramRequest& request, const FileLookup& files, const EnvLookup& env);

// Which spelling ddprun-launch hands to this script: true = "--local_rank". For --local-rank-style=auto: underscore if
// the text has "--local_rank" and not "--local-rank".
bool wants_underscore_local_rank(const std::string& script_text);

}  // namespace ddprun::launcher
