#include "launcher/line_mixer.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ddprun::launcher {

int LineMixer::add(std::string prefix) {
  streams_[next_number_].prefix = std::move(prefix);
  return next_number_++;
}

// `text` is one line (with its newline) or a piece of one; without a prefix also several lines.
void LineMixer::emit(int number, const Stream& stream, std::string_view text, std::string& out) {
  if (text.empty()) return;
  if (open_line_of_ != number) {
    if (open_line_of_ != -1 && !stream.prefix.empty()) out += '\n';
    out += stream.prefix;
  }
  out += text;
  // After a `\r` the cursor is at the front again: the next piece, whoever's, starts with its prefix.
  const bool at_front = text.back() == '\n' || (text.back() == '\r' && !stream.prefix.empty());
  open_line_of_ = at_front ? -1 : number;
}

void LineMixer::feed(int number, std::string_view bytes, TimePoint now, std::string& out) {
  const auto found = streams_.find(number);
  CHECK(found != streams_.end(), "output stream is not known");
  Stream& stream = found->second;
  if (bytes.empty()) return;
  if (stream.prefix.empty() && streams_.size() == 1) {
    emit(number, stream, bytes, out);
    return;
  }
  if (stream.prefix.empty()) {
    // All up to the last newline goes out as it is.
    const std::size_t last = bytes.rfind('\n');
    if (last != std::string_view::npos) {
      if (!stream.held.empty()) emit(number, stream, std::exchange(stream.held, {}), out);
      emit(number, stream, bytes.substr(0, last + 1), out);
      bytes.remove_prefix(last + 1);
    }
  } else {
    std::size_t end;
    while ((end = bytes.find('\n')) != std::string_view::npos) {
      if (!stream.held.empty()) {
        stream.held += bytes.substr(0, end + 1);
        emit(number, stream, stream.held, out);
        stream.held.clear();
      } else {
        emit(number, stream, bytes.substr(0, end + 1), out);
      }
      bytes.remove_prefix(end + 1);
    }
  }
  if (bytes.empty()) return;
  if (stream.held.empty()) stream.held_since = now;
  stream.held += bytes;
  if (terminal_ && stream.held.size() >= 2) {
    // "\r\n" is a line's end, so a `\r` that comes last waits for what follows it.
    const std::size_t last = stream.held.rfind('\r', stream.held.size() - 2);
    if (last != std::string::npos) {
      emit(number, stream, std::string_view(stream.held).substr(0, last + 1), out);
      stream.held.erase(0, last + 1);
      stream.held_since = now;
    }
  }
  if (stream.held.size() > kMaxHeld) emit(number, stream, std::exchange(stream.held, {}), out);
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

std::optional<TimePoint> LineMixer::next_flush() const {
  std::optional<TimePoint> next;
  for (const auto& [number, stream] : streams_) {
    if (stream.held.empty() || !may_flush(stream)) continue;
    const TimePoint at = stream.held_since + kHold;
    if (!next || at < *next) next = at;
  }
  return next;
}

void LineMixer::flush_idle(TimePoint now, std::string& out) {
  for (auto& [number, stream] : streams_) {
    if (stream.held.empty() || !may_flush(stream) || stream.held_since + kHold > now) continue;
    emit(number, stream, stream.held, out);
    stream.held.clear();
  }
}

}  // namespace ddprun::launcher
