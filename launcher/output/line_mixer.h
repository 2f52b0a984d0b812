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
// With a prefix: "<prefix><line>\n"; a last line without a newline gets one. A `\r` within a line (a progress bar) ends
// a piece of it: the next piece has the prefix again, after its leading `\r`. Without a prefix: the bytes themselves,
// no more and no less. What has no end yet is held back, except
//   - on a terminal, or without a prefix: after kHold it is shown (a prompt, a row of dots);
//   - elsewhere with a prefix: after kHoldBar when it belongs to a progress bar, else after kHoldPlain. When another
//     stream's line comes then, the rest stands on a line of its own with its prefix;
//   - beyond kMaxHeld bytes.
// A character of UTF-8 is not torn by that. A stream that is alone on its console and has no prefix is never held back.
class LineMixer {
 public:
  static constexpr std::size_t kMaxHeld = 4 << 20;
  static constexpr std::chrono::milliseconds kHold{100}, kHoldBar{500}, kHoldPlain{2000};

  explicit LineMixer(bool terminal) : terminal_(terminal) {}

  int add(std::string prefix);  // a new stream; its number
  void feed(int stream, std::string_view bytes, TimePoint now, std::string& out);
  void finish(int stream, std::string& out);  // shows what is held back and forgets the stream
  std::optional<TimePoint> next_flush() const;
  void flush_idle(TimePoint now, std::string& out);
  // The console takes nothing: what is held back has not waited for its end, and begins to do so now.
  void hold_again(TimePoint now);

 private:
  struct Stream {
    std::string prefix;
    std::string held;
    TimePoint held_since;
  };
  void feed_plain(int number, Stream& stream, std::string_view bytes, TimePoint now, std::string& out);
  void feed_lines(int number, Stream& stream, std::string_view bytes, TimePoint now, std::string& out);
  void emit(int number, const Stream& stream, std::string_view text, std::string& out);
  void emit_held(int number, Stream& stream, TimePoint now, std::string& out);
  TimePoint shown_at(int number, const Stream& stream) const;

  bool terminal_;
  int next_number_ = 0;
  int open_line_of_ = -1;      // whose unfinished line stands at the end of the console
  bool after_return_ = false;  // and it ended in `\r`
  std::map<int, Stream> streams_;
};

}  // namespace ddprun::launcher
