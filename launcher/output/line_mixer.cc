#include "launcher/output/line_mixer.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/printable.h"

namespace ddprun::launcher {

int LineMixer::add(std::string prefix) {
  streams_[next_number_].prefix = std::move(prefix);
  return next_number_++;
}

namespace {

// Where the first piece of `line` ends that a `\r` ends which something follows: behind it; npos = there is none.
// Leading ones belong to the piece, and "\r\n" is the line's own end. What is before `from` has been looked at.
std::size_t piece_end(std::string_view line, std::size_t from) {
  const std::size_t words = std::min(line.find_first_not_of('\r'), line.size());
  const std::size_t at = line.find('\r', std::max(from, words));
  if (at == std::string_view::npos || at + 1 == line.size() || line[at + 1] == '\n') return std::string_view::npos;
  return at + 1;
}

}  // namespace

// `text` is one piece (with its end) or the beginning of one; without a prefix anything.
void LineMixer::emit(int number, const Stream& stream, std::string_view text, std::string& out) {
  if (text.empty()) return;
  if (stream.prefix.empty()) {
    out += text;
    open_line_of_ = text.back() == '\n' ? -1 : number;
    return;
  }
  const bool ours = open_line_of_ == number;
  if (!ours && open_line_of_ != -1) out += '\n';
  // The prefix stands where the text does, behind the `\r` that takes the cursor to the front.
  const std::string_view words = text.substr(std::min(text.find_first_not_of('\r'), text.size()));
  const bool only_end = words == "\n";  // of our open line, or an empty line of its own
  const std::string_view rest = only_end && !ours ? text : words;
  const std::size_t lead = text.size() - rest.size();
  out.append(lead, '\r');
  const bool prefix = !rest.empty() && (!ours || ((lead > 0 || after_return_) && !only_end));
  if (prefix) out += stream.prefix;
  out += rest;
  if (rest.empty()) {
    after_return_ = ours;
    if (!ours) open_line_of_ = -1;
    return;
  }
  after_return_ = rest.back() == '\r';
  // On a terminal the cursor is at the front again after `\r`: whoever comes next writes over it. A file keeps both.
  open_line_of_ = rest.back() == '\n' || (terminal_ && after_return_) ? -1 : number;
}

// As much of what is held back as does not tear a character.
void LineMixer::emit_held(int number, Stream& stream, TimePoint now, std::string& out) {
  const std::string held = std::exchange(stream.held, {});
  std::string_view whole = without_torn_end(held);
  if (whole.empty()) whole = held;
  emit(number, stream, whole, out);
  stream.held = held.substr(whole.size());
  stream.held_since = now;
}

void LineMixer::feed(int number, std::string_view bytes, TimePoint now, std::string& out) {
  const auto found = streams_.find(number);
  CHECK(found != streams_.end(), "output stream is not known");
  if (bytes.empty()) return;
  Stream& stream = found->second;
  if (stream.prefix.empty()) {
    feed_plain(number, stream, bytes, now, out);
  } else {
    feed_lines(number, stream, bytes, now, out);
  }
  if (stream.held.size() > kMaxHeld) emit_held(number, stream, now, out);
}

void LineMixer::feed_plain(int number, Stream& stream, std::string_view bytes, TimePoint now, std::string& out) {
  if (streams_.size() == 1) {
    if (!stream.held.empty()) emit(number, stream, std::exchange(stream.held, {}), out);
    emit(number, stream, bytes, out);
    return;
  }
  // All up to the last newline goes out as it is.
  const std::size_t last = bytes.rfind('\n');
  if (last != std::string_view::npos) {
    if (!stream.held.empty()) emit(number, stream, std::exchange(stream.held, {}), out);
    emit(number, stream, bytes.substr(0, last + 1), out);
    bytes.remove_prefix(last + 1);
  }
  if (bytes.empty()) return;
  if (stream.held.empty()) stream.held_since = now;
  stream.held += bytes;
  if (!terminal_ || stream.held.size() < 2) return;
  // "\r\n" is a line's end, so a `\r` that comes last waits for what follows it.
  const std::size_t bar = stream.held.rfind('\r', stream.held.size() - 2);
  if (bar == std::string::npos) return;
  emit(number, stream, std::string_view(stream.held).substr(0, bar + 1), out);
  stream.held.erase(0, bar + 1);
  stream.held_since = now;
}

void LineMixer::feed_lines(int number, Stream& stream, std::string_view bytes, TimePoint now, std::string& out) {
  const std::size_t looked_at = stream.held.size();
  std::string together;
  if (looked_at > 0) {
    together = std::exchange(stream.held, {});
    together += bytes;
    bytes = together;
  }
  if (looked_at == 0) stream.held_since = now;
  std::size_t from = looked_at > 0 ? looked_at - 1 : 0;
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n', from);
    std::string_view line = newline == std::string_view::npos ? bytes : bytes.substr(0, newline + 1);
    for (std::size_t end; (end = piece_end(line, from)) != std::string_view::npos; from = 0) {
      emit(number, stream, line.substr(0, end), out);
      line.remove_prefix(end);
      bytes.remove_prefix(end);
      stream.held_since = now;
    }
    if (newline == std::string_view::npos) break;
    emit(number, stream, line, out);
    bytes.remove_prefix(line.size());
    stream.held_since = now;
    from = 0;
  }
  if (!bytes.empty() && bytes.size() == together.size()) {
    stream.held = std::move(together);  // nothing was taken from it
  } else {
    stream.held = bytes;
  }
}

void LineMixer::finish(int number, std::string& out) {
  const auto found = streams_.find(number);
  CHECK(found != streams_.end(), "output stream is not known");
  Stream& stream = found->second;
  emit(number, stream, stream.held, out);
  if (open_line_of_ == number) {
    if (!stream.prefix.empty()) {
      out += '\n';
      open_line_of_ = -1;
    } else {
      open_line_of_ = -2;  // nobody's: who comes next does not continue it
    }
  }
  streams_.erase(found);
}

TimePoint LineMixer::shown_at(int number, const Stream& stream) const {
  if (terminal_ || stream.prefix.empty()) return stream.held_since + kHold;
  const bool bar = stream.held.find('\r') != std::string::npos || (open_line_of_ == number && after_return_);
  return stream.held_since + (bar ? kHoldBar : kHoldPlain);
}

std::optional<TimePoint> LineMixer::next_flush() const {
  std::optional<TimePoint> next;
  for (const auto& [number, stream] : streams_) {
    if (stream.held.empty()) continue;
    const TimePoint at = shown_at(number, stream);
    if (!next || at < *next) next = at;
  }
  return next;
}

void LineMixer::flush_idle(TimePoint now, std::string& out) {
  for (auto& [number, stream] : streams_) {
    if (!stream.held.empty() && shown_at(number, stream) <= now) emit_held(number, stream, now, out);
  }
}

void LineMixer::hold_again(TimePoint now) {
  for (auto& [number, stream] : streams_) stream.held_since = now;
}

}  // namespace ddprun::launcher
