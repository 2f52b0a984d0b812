#include "launcher/output/remedy.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "common/exit_code.h"
#include "launcher/output/error_file.h"

namespace ddprun::launcher {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// "pkg.SomeError: text" or "SomeError", as Python prints an exception's last line.
bool is_python_error(std::string_view line) {
  const std::size_t end = std::min(line.find(':'), line.size());
  const std::string_view name = line.substr(0, end);
  if (name.empty() || !std::all_of(name.begin(), name.end(),
                                   [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; })) {
    return false;
  }
  const auto ends_with = [&name](std::string_view suffix) {
    return name.size() >= suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
  };
  return ends_with("Error") || ends_with("Exception") || ends_with("Interrupt") || ends_with("BdbQuit") ||
         ends_with("Exit");
}

constexpr std::array<std::string_view, 9> kErrorMarks{"error:",
                                                      "Error:",
                                                      "ERROR",
                                                      "not found",
                                                      "Permission denied",
                                                      "No such file",
                                                      "terminate called",
                                                      "Segmentation fault",
                                                      "fatal"};

// What stands between the first pair of ' after `mark`.
std::string quoted_after(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return "";
  const std::size_t open = text.find('\'', at);
  const std::size_t close = open == std::string_view::npos ? open : text.find('\'', open + 1);
  return close == std::string_view::npos ? "" : std::string(text.substr(open + 1, close - open - 1));
}

}  // namespace

std::string find_error_line(const std::vector<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (is_python_error(*line)) return *line;
  }
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (std::any_of(kErrorMarks.begin(), kErrorMarks.end(),
                    [&line](std::string_view mark) { return contains(*line, mark); })) {
      return *line;
    }
  }
  return "";
}

std::string find_remedy(const FailureRecord& failure, const std::string& python) {
  const std::string interpreter = python.empty() ? "the Python that runs it" : python;
  if (failure.out_of_memory) {
    return "it was killed by the memory limit; give the job more memory (limit of the container, control group or "
           "batch job), or use less: smaller batches, fewer data loader workers";
  }
  std::string text = failure.message;
  for (const auto& line : failure.last_lines) text += "\n" + line;
  const ErrorFile file = parse_error_file(failure.error_file_json);
  text += "\n" + file.message;

  if (const std::string module = quoted_after(text, "ModuleNotFoundError: No module named"); !module.empty()) {
    return "the Python module '" + module + "' is not installed for " + interpreter +
           ": install it there, or start ddprun from the environment that has it (or set PYTHON_EXEC)";
  }
  if (contains(text, "bdb.BdbQuit") || contains(text, "EOFError: EOF when reading a line")) {
    return "a debugger or input() found no standard input there: on a terminal every worker has it (--stdin=auto), "
           "elsewhere give it to this one with --stdin=" +
           std::to_string(failure.local_rank.value);
  }
  if (contains(text, "ImportError:")) {
    return "an import failed in " + interpreter + ": is this the environment that the script was written for?";
  }
  if (contains(text, "failed to map segment from shared object")) {
    return "there is no room for the program's libraries (--worker-limit=address-space, ulimit -v), or they lie on a "
           "file system that is mounted noexec";
  }
  if (contains(text, "error while loading shared libraries:")) {
    return "a shared library is missing: install it, or add its folder to LD_LIBRARY_PATH";
  }
  // Seen with torch 2.15 and Python 3.11: a thread of the process group drops the last reference to a tensor that
  // Python knows while the interpreter is shutting down; Python then ends that thread by pthread_exit, inside noexcept
  // code.
  if (failure.signal == SIGABRT && contains(text, "terminate called without an active exception")) {
    return "a thread still worked while the program ended; in a PyTorch script that is a process group in use: call "
           "torch.distributed.destroy_process_group() before the script ends, also when it ends early";
  }
  if (contains(text, "can't open file")) return "the script does not exist there: check its path on every node";
  if (contains(text, "unrecognized arguments: --local-rank") ||
      contains(text, "unrecognized arguments: --local_rank")) {
    return "the script does not take that spelling of the local rank: see --local-rank-style and --use-env of "
           "ddprun-launch, or read LOCAL_RANK from the environment and start it with ddprun";
  }
  if (contains(text, "CUDA out of memory") || contains(text, "CUDA error: out of memory")) {
    return "the GPU's memory ran out: smaller batches, activation checkpointing, or see what else uses this GPU "
           "(nvidia-smi)";
  }
  if (contains(text, "Address already in use") || contains(text, "EADDRINUSE")) {
    return "a port is taken, perhaps by a worker of an earlier job: ss -ltnp names its holder";
  }
  if (contains(text, "No space left on device")) return "a disk is full: df -h names it (also /dev/shm and /tmp)";
  if (contains(text, "unable to open shared memory object") || contains(text, "insufficient shared memory (shm)")) {
    return "shared memory is short: see df /dev/shm; containers have 64 MiB unless told otherwise (--shm-size)";
  }
  if (contains(text, "NCCL error") || contains(text, "ncclUnhandledCudaError") || contains(text, "ncclSystemError") ||
      contains(text, "ncclRemoteError")) {
    return "NCCL failed: start again with --nccl-debug to see its own reason";
  }
  // Of our own start errors (launcher/process/limits.h), of shells, and of Python's threads.
  if (contains(failure.message, "the limit on processes is reached") || contains(text, "can't start new thread") ||
      contains(text, "fork: retry: Resource temporarily unavailable")) {
    return "this user or control group may have no more processes and threads: raise it with ulimit -u (pids.max: at "
           "the container or batch job), or start fewer workers (--nproc-per-node)";
  }
  if (contains(failure.message, "the limit on open files is reached")) {
    return "raise it with ulimit -n, or start fewer workers on this node (--nproc-per-node)";
  }
  if (contains(text, "Exec format error")) {
    return "it is not a program for this machine: no executable of this architecture, and no script either, whose "
           "first line names its interpreter after #!";
  }
  if (failure.exit_code == exit_code::kProgramNotFound || contains(failure.message, "No such file")) {
    return "the program was not found: check the path and PATH, on every node; in a script, the interpreter named "
           "after #! must exist too";
  }
  if (failure.exit_code == exit_code::kNotExecutable || contains(failure.message, "Permission denied")) {
    return "the program cannot be executed: chmod +x it, and see that its file system is not mounted noexec";
  }
  if (contains(text, "Permission denied")) {
    return "something may not be read, written or executed by this user: the line above names it";
  }
  if (contains(text, "std::bad_alloc") || contains(text, "Cannot allocate memory") || contains(text, "MemoryError")) {
    return "an allocation failed: see the address space limit (ulimit -v, --worker-limit) and the free memory";
  }
  switch (failure.signal) {
    case SIGSEGV:
    case SIGILL:
    case SIGFPE:
      return "it crashed in native code: PYTHONFAULTHANDLER=1 shows where Python was, `ulimit -c unlimited` keeps a "
             "core";
    case SIGBUS:
      return "SIGBUS: mapped memory could not be filled; a full /dev/shm does that (df /dev/shm)";
    case SIGKILL:
      if (!failure.stopped_by_us) {
        return "it was killed from outside and no memory limit of its control group was hit: a person, a scheduler, or "
               "the host's own out-of-memory killer (dmesg)";
      }
      return "";
    default:
      return "";
  }
}

}  // namespace ddprun::launcher
