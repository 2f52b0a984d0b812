#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

// Our words to a descriptor that others share and that perhaps nobody reads (standard error).
namespace ddprun {

// Never makes its caller wait for the reader, never changes the descriptor's flags (O_NONBLOCK would be every other
// holder's too), never raises SIGPIPE:
//   - it is written to by a SharedOut, made anew for each write, so that nothing is kept open;
//   - what does not go out at once, and all for a pipe or terminal that cannot be opened again (another user's),
//     waits here, at most kMaxWaiting bytes, for a thread that is started then. That it may hang in write(2) hurts
//     nobody; poll() and small writes alone would not do for the caller, since another holder can fill the pipe between
//     the two. Where no thread is to be had (ulimit -u) flush() does its work.
// What finds no room is counted; once half the room is free again `lost_line` says so in its place.
// Any thread. In a process forked from the owner's: direct writes, at most a second long, no lock.
class StderrWriter {
 public:
  static constexpr std::size_t kMaxWaiting = 256 * 1024;

  // lost_line: whole lines for "so many lines were lost here".
  StderrWriter(int fd, std::function<std::string(std::uint64_t lines)> lost_line);
  StderrWriter(const StderrWriter&) = delete;
  StderrWriter& operator=(const StderrWriter&) = delete;

  // `text`: whole lines. `important` (the last word) may use as much room again.
  void write(std::string_view text, bool important = false);
  // Until all is out, but not longer than `limit`, or `idle_limit` without any progress. False: something is left.
  bool flush(std::chrono::milliseconds limit, std::chrono::milliseconds idle_limit);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // outlives us for a thread that hangs
};

}  // namespace ddprun
