#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "launcher/output/output.h"

namespace ddprun::launcher {

// A file that collects the lines of several streams that contain one of `needles`.
struct LineFilter {
  UniqueFd file;
  std::vector<std::string> needles;
};

// Moves the workers' output from pipes and ptys to files and to our console, on a thread of its own (file systems
// block, and heartbeats must not wait for them). The file comes first: a console that is slow or stuck holds up only
// the workers that have no file; one that has a file goes on, and the console catches up from the file later, so memory
// stays bounded and nothing is lost.
class OutputHub {
 public:
  enum class Target { none, console_stdout, console_stderr };

  struct Stream {
    UniqueFd source;   // read end of a pipe, or the master of a pty; non-blocking
    UniqueFd file;     // empty = none; opened with O_APPEND and readable
    std::string path;  // of the file: for rotation and messages
    Target target = Target::none;
    std::string prefix;  // "" = bytes as they are
    std::shared_ptr<LineFilter> filter;
    std::string name;  // "rank 3 stdout", for messages
  };

  // What became of a stream, told once when it is done.
  struct Ended {
    int id = 0;
    std::string recent;  // its last bytes, at most kRecentBytes
  };
  static constexpr std::size_t kRecentBytes = 32 * 1024;

  // `on_ended` and `on_problem` (a sentence for our log) are called on `executor`, never after this object is gone.
  OutputHub(boost::asio::any_io_executor executor, OutputPolicy policy, std::function<void(Ended)> on_ended,
            std::function<void(std::string)> on_problem);
  ~OutputHub();  // gives up what is not out yet
  OutputHub(const OutputHub&) = delete;
  OutputHub& operator=(const OutputHub&) = delete;

  // The first one starts the thread. Throws std::system_error when there is no room for that; the hub is as before.
  int add(Stream stream);
  // Its writers are dead: read to the end of file, but at most this long (someone who escaped may hold it), show the
  // rest, then report it as ended.
  void finish(int id, std::chrono::milliseconds limit);
  // Blocks until every stream that was finished has ended; false: not within `limit`.
  bool wait_until_ended(std::chrono::milliseconds limit);
  // From now on a console that takes nothing for `patience` loses what is left.
  void set_console_patience(std::chrono::milliseconds patience);
  // Of our terminal, to all ptys.
  void copy_window_size();

  // Our own stream of that target is a terminal: a worker's stream to it should be a pty.
  bool is_terminal(Target target) const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// The last `count` lines of `bytes`; of a line with carriage returns only what a terminal would show last.
std::vector<std::string> last_lines(const std::string& bytes, std::size_t count, bool cut_at_front);

struct PipePair {
  UniqueFd ours;    // to read from, non-blocking
  UniqueFd theirs;  // for the worker
};
// Both ends are close-on-exec. Errors: system.
Result<PipePair> make_pipe();
// A pty without output processing, with the window size of `terminal_fd`; it becomes nobody's controlling terminal.
Result<PipePair> make_pty(int terminal_fd);

}  // namespace ddprun::launcher
