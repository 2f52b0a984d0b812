#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"

namespace ddprun::launcher {

// Several byte streams -> one console, whole lines of one stream at a time. Pure.
//
// With a prefix: "<prefix><line>\n"; a last line without a newline gets one. Without: the bytes themselves, no more and
// no less. What has no newline yet is held back, except
//   - on a terminal, or without a prefix: after kHold of silence it is shown (a prompt, a row of dots);
//   - on a terminal: a `\r` (progress bar) ends what is shown at once;
//   - beyond kMaxHeld bytes.
// A stream that is alone on its console and has no prefix is never held back.
class LineMixer {
 public:
  static constexpr std::size_t kMaxHeld = 4 << 20;
  static constexpr std::chrono::milliseconds kHold{100};

  explicit LineMixer(bool terminal) : terminal_(terminal) {}

  int add(std::string prefix);  // a new stream; its number
  void feed(int stream, std::string_view bytes, TimePoint now, std::string& out);
  void finish(int stream, std::string& out);  // shows what is held back and forgets the stream
  std::optional<TimePoint> next_flush() const;
  void flush_idle(TimePoint now, std::string& out);

 private:
  struct Stream {
    std::string prefix;
    std::string held;
    TimePoint held_since;
  };
  void emit(int number, const Stream& stream, std::string_view text, std::string& out);
  bool may_flush(const Stream& stream) const { return terminal_ || stream.prefix.empty(); }

  bool terminal_;
  int next_number_ = 0;
  int open_line_of_ = -1;  // whose unfinished line stands at the end of the console
  std::map<int, Stream> streams_;
};

}  // namespace ddprun::launcher
