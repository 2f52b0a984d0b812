#include "worker/comm/tcp_ring.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/tcp.h"
#include "common/wire.h"
#include "worker/comm/reduce_kernels.h"

namespace ddprun::comm {
namespace {

constexpr std::uint8_t kSignature = 1, kAbort = 2, kBye = 3, kPing = 4, kPong = 5;
constexpr std::size_t kFrameHeader = 5, kMostPayload = 8192;
// Small enough that a segment is still in the cache when it is added, large enough to hide the calls (256 KiB cost a
// third more CPU time on loopback).
constexpr std::size_t kSegment = 1024 * 1024;
constexpr int kSliceMs = 20;
constexpr auto kPingPatience = std::chrono::milliseconds(500);
// Neighbours that answer are themselves waiting for somebody; who knows more tells it within this time.
constexpr auto kGrace = std::chrono::milliseconds(2500);

std::string encode(const Signature& s) {
  WireWriter w;
  w.u64(s.sequence);
  w.u64(s.count);
  w.u8(static_cast<std::uint8_t>(s.kind));
  w.u8(static_cast<std::uint8_t>(s.reduce));
  w.u8(static_cast<std::uint8_t>(s.dtype));
  w.u32(static_cast<std::uint32_t>(s.root));
  return std::move(w).take();
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

TcpRing::TcpRing(const RingPlace& place) : index_(place.index), ranks_(place.ranks) {
  const std::size_t n = ranks_.size(), i = static_cast<std::size_t>(index_);
  next_.rank = ranks_[(i + 1) % n];
  previous_.rank = ranks_[(i + n - 1) % n];
  scratch_.resize(static_cast<std::size_t>(std::max(place.connections, 1)));
}

TcpRing::~TcpRing() {
  if (!usable_here() || size() == 1) return;
  WireWriter bye;
  bye.u64(done_);
  for (Neighbour* n : {&next_, &previous_}) {
    if (!n->closed) send_frame(*n, kBye, bye.bytes());
  }
}

std::optional<Error> TcpRing::verdict() const {
  std::lock_guard lock(mutex_);
  return verdict_;
}

Error TcpRing::fail(const Error& error) {
  {
    std::lock_guard lock(mutex_);
    if (verdict_.has_value()) return *verdict_;
    verdict_ = error;
  }
  WireWriter payload;
  payload.u32(static_cast<std::uint32_t>(error.code()));
  payload.raw(std::string_view(error.message()).substr(0, kMostPayload - 64));
  for (Neighbour* n : {&next_, &previous_}) {
    if (n->control && !n->closed) send_frame(*n, kAbort, payload.bytes());
  }
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  return error;
}

void TcpRing::abort(const std::string& reason) {
  (void)fail(Error(Errc::cancelled, fmt::format("rank {} aborted: {}", rank(), reason)));
}

void TcpRing::send_frame(Neighbour& to, std::uint8_t type, std::string_view payload) {
  WireWriter frame;
  frame.u8(type);
  frame.u32(static_cast<std::uint32_t>(payload.size()));
  frame.raw(payload);
  std::lock_guard lock(mutex_);
  // Frames are small and the other side reads them whenever it waits; one that cannot be sent is one that nobody reads.
  (void)write_all(to.control.get(), frame.bytes(), SteadyClock::now() + std::chrono::milliseconds(200));
}

Result<void> TcpRing::read_control(Neighbour& from) {
  char buffer[4096];
  while (!from.closed) {
    const ssize_t n = ::recv(from.control.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && would_block()) break;
    if (n <= 0) {
      from.closed = true;  // whether that matters is seen when something of it is needed
      break;
    }
    from.input.append(buffer, static_cast<std::size_t>(n));
  }
  while (from.input.size() >= kFrameHeader) {
    WireReader header(from.input);
    const std::uint8_t type = header.u8();
    const std::uint32_t size = header.u32();
    if (size > kMostPayload)
      return fail(Error(Errc::malformed, fmt::format("rank {} sent a strange frame", from.rank)));
    if (from.input.size() < kFrameHeader + size) break;
    const std::string payload = from.input.substr(kFrameHeader, size);
    from.input.erase(0, kFrameHeader + size);
    Result<void> ok = handle_frame(from, type, payload);
    if (!ok) return ok;
  }
  return {};
}

Result<void> TcpRing::handle_frame(Neighbour& from, std::uint8_t type, std::string_view payload) {
  WireReader reader(payload);
  switch (type) {
    case kSignature: {
      Signature s;
      s.sequence = reader.u64();
      s.count = reader.u64();
      const std::uint8_t kind = reader.u8(), reduce = reader.u8(), dtype = reader.u8();
      s.root = static_cast<std::int32_t>(reader.u32());
      if (!reader.finished() || kind > static_cast<std::uint8_t>(OpKind::allocate) ||
          reduce > static_cast<std::uint8_t>(Reduce::max) || dtype > static_cast<std::uint8_t>(DType::i64)) {
        break;
      }
      s.kind = static_cast<OpKind>(kind);
      s.reduce = static_cast<Reduce>(reduce);
      s.dtype = static_cast<DType>(dtype);
      from.signatures.push_back(s);
      return {};
    }
    case kAbort: {
      const std::uint32_t code = reader.u32();
      const std::string text(payload.substr(std::min<std::size_t>(4, payload.size())));
      if (code > static_cast<std::uint32_t>(Errc::system)) break;
      return fail(Error(static_cast<Errc>(code), text));  // and so on, round the ring
    }
    case kBye:
      from.left_after = reader.u64();
      return {};
    case kPing:
      send_frame(from, kPong, {});
      return {};
    case kPong:
      from.answered = true;
      return {};
    default:
      break;
  }
  return fail(Error(Errc::malformed, fmt::format("rank {} sent a strange frame of type {}", from.rank, type)));
}

std::optional<Error> TcpRing::news() {
  if (auto told = verdict()) return told;
  for (Neighbour* n : {&next_, &previous_}) {
    if (!n->control || n->closed) continue;
    Result<void> ok = read_control(*n);
    if (!ok) return ok.error();
  }
  return std::nullopt;
}

Error TcpRing::gone(Operation& op, const Neighbour& who, std::string_view how) {
  if (auto told = news()) return *told;  // it may have said why
  if (who.rank < 64) op.missing |= std::uint64_t{1} << who.rank;
  if (who.left_after.has_value()) {
    return Error(
        Errc::peer_closed,
        fmt::format("rank {} returned early: it closed its communicator after {} collectives, while rank {} is "
                    "in {}; missing ranks: {}",
                    who.rank, *who.left_after, rank(), op.signature.describe(), who.rank));
  }
  return Error(Errc::peer_closed, fmt::format("rank {} died: {} while rank {} is in {}; missing ranks: {}", who.rank,
                                              how, rank(), op.signature.describe(), who.rank));
}

// At the deadline: a neighbour that does not answer a ping is stopped, gone or cut off; one that has not arrived is
// late.
Result<void> TcpRing::check_deadline(Operation& op) {
  const TimePoint now = SteadyClock::now();
  if (now < op.deadline()) return {};
  const auto missing = [&](const Neighbour& n, std::string_view how) {
    if (n.rank < 64) op.missing |= std::uint64_t{1} << n.rank;
    return fail(Error(Errc::timed_out, fmt::format("timed out in {} on rank {}; missing ranks: {} ({})",
                                                   op.signature.describe(), rank(), n.rank, how)));
  };
  if (!next_.pinged) {
    pinged_at_ = now;
    for (Neighbour* n : {&next_, &previous_}) {
      n->pinged = true;
      n->answered = false;
      if (!n->closed) send_frame(*n, kPing, {});
    }
    return {};
  }
  if (now < pinged_at_ + kPingPatience) return {};
  if (!previous_.answered) return missing(previous_, "it does not answer");
  if (!next_.answered) return missing(next_, "it does not answer");
  if (now < op.deadline() + kGrace) return {};
  return missing(previous_, "it waits for others in its turn");
}

Result<void> TcpRing::idle(Operation& op, std::span<pollfd> more) {
  pollfd fixed[3] = {{previous_.closed ? -1 : previous_.control.get(), POLLIN, 0},
                     {next_.closed ? -1 : next_.control.get(), POLLIN, 0},
                     {wake_.get(), POLLIN, 0}};
  std::vector<pollfd> all(more.begin(), more.end());
  all.insert(all.end(), std::begin(fixed), std::end(fixed));
  const int n = ::poll(all.data(), all.size(), kSliceMs);
  std::copy(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(more.size()), more.begin());
  if (auto told = news()) return *told;
  if (n <= 0) {
    if (watch_) {
      if (auto told = watch_()) return fail(*told);
    }
    return check_deadline(op);
  }
  return {};
}

Result<void> TcpRing::wait_for_signature(Operation& op) {
  while (previous_.signatures.empty()) {
    Result<void> ok = read_control(previous_);
    if (!ok) return ok;
    if (!previous_.signatures.empty()) break;
    if (previous_.closed || previous_.left_after.has_value()) {
      return fail(gone(op, previous_, "its connection was closed"));
    }
    ok = idle(op, {});
    if (!ok) return ok;
  }
  const Signature theirs = previous_.signatures.front();
  previous_.signatures.pop_front();
  if (!(theirs == op.signature)) {
    return fail(Error(Errc::invalid_argument, describe_mismatch(previous_.rank, theirs, rank(), op.signature)));
  }
  return {};
}

Result<void> TcpRing::begin(Operation& op) {
  if (auto told = news()) return *told;
  if (watch_) {
    if (auto told = watch_()) return fail(*told);
  }
  next_.pinged = previous_.pinged = false;
  send_frame(next_, kSignature, encode(op.signature));
  return wait_for_signature(op);
}

// Drives all steps of one operation over all data connections at once.
class TcpRing::Run {
 public:
  Run(TcpRing& ring, Operation& op, std::span<const Step> steps)
      : ring_(ring), op_(op), steps_(steps), lanes_(ring.next_.data.size()) {
    for (std::size_t k = 0; k < lanes_.size(); ++k) {
      lanes_[k].send = Cursor{0, k, 0};
      lanes_[k].receive = Cursor{0, k, 0};
      settle(lanes_[k].send, true);
      settle(lanes_[k].receive, false);
    }
  }

  Result<void> drive() {
    while (true) {
      bool moved = false, pending = false;
      for (std::size_t k = 0; k < lanes_.size(); ++k) {
        auto received = receive_some(k);
        if (!received) return received.error();
        auto sent = send_some(k);
        if (!sent) return sent.error();
        moved = moved || *received || *sent;
        pending = pending || !finished(lanes_[k].send) || !finished(lanes_[k].receive);
      }
      if (!pending) return {};
      if (moved) {
        if (++turns_ % 256 == 0) {  // busy for long: look at news all the same
          if (auto told = ring_.news()) return *told;
        }
        continue;
      }
      std::vector<pollfd> wanted;
      for (std::size_t k = 0; k < lanes_.size(); ++k) {
        if (!finished(lanes_[k].receive)) wanted.push_back({ring_.previous_.data[k].get(), POLLIN, 0});
        if (may_send(k)) wanted.push_back({ring_.next_.data[k].get(), POLLOUT, 0});
      }
      Result<void> ok = ring_.idle(op_, wanted);
      if (!ok) return ok;
    }
  }

 private:
  // Segment `segment` of step `step`; lane k carries segments k, k + lanes, ...
  struct Cursor {
    std::size_t step = 0, segment = 0, offset = 0;
  };
  struct Lane {
    Cursor send, receive;
  };

  const Part& part(const Cursor& c, bool send) const { return send ? steps_[c.step].send : steps_[c.step].receive; }
  bool finished(const Cursor& c) const { return c.step >= steps_.size(); }
  std::size_t segment_size(const Cursor& c, bool send) const {
    return std::min(kSegment, part(c, send).size_bytes - c.segment * kSegment);
  }
  // Moves on to the next step while this one has no segment left for the lane.
  void settle(Cursor& c, bool send) {
    const std::size_t lane = c.segment % lanes_.size();
    while (!finished(c) && c.segment * kSegment >= part(c, send).size_bytes) {
      ++c.step;
      c.segment = lane;
    }
  }
  void advance(Cursor& c, bool send) {
    c.offset = 0;
    c.segment += lanes_.size();
    settle(c, send);
  }
  // What goes out in step s came in with step s - 1, on the same lane.
  bool may_send(std::size_t k) const {
    const Cursor &s = lanes_[k].send, &r = lanes_[k].receive;
    if (finished(s)) return false;
    if (s.step == 0 || steps_[s.step - 1].receive.size_bytes == 0) return true;
    return r.step >= s.step || (r.step + 1 == s.step && r.segment > s.segment);
  }

  Result<bool> send_some(std::size_t k) {
    bool moved = false;
    while (may_send(k)) {
      Cursor& c = lanes_[k].send;
      const std::size_t size = segment_size(c, true);
      const std::byte* from = part(c, true).data + c.segment * kSegment + c.offset;
      const ssize_t n = ::send(ring_.next_.data[k].get(), from, size - c.offset, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && would_block()) break;
      if (n < 0) return ring_.fail(ring_.gone(op_, ring_.next_, std::strerror(errno)));
      moved = true;
      c.offset += static_cast<std::size_t>(n);
      if (c.offset == size) advance(c, true);
    }
    return moved;
  }

  Result<bool> receive_some(std::size_t k) {
    bool moved = false;
    while (!finished(lanes_[k].receive)) {
      Cursor& c = lanes_[k].receive;
      const Step& step = steps_[c.step];
      const std::size_t size = segment_size(c, false);
      std::byte* place = step.receive.data + c.segment * kSegment;
      std::byte* into = place;
      if (step.reduces) {
        if (ring_.scratch_[k].size() < size) ring_.scratch_[k].resize(kSegment);
        into = ring_.scratch_[k].data();
      }
      const ssize_t n = ::recv(ring_.previous_.data[k].get(), into + c.offset, size - c.offset, MSG_DONTWAIT);
      if (n < 0 && would_block()) break;
      if (n <= 0) {
        return ring_.fail(
            ring_.gone(op_, ring_.previous_, n == 0 ? "its connection was closed" : std::strerror(errno)));
      }
      moved = true;
      c.offset += static_cast<std::size_t>(n);
      if (c.offset < size) continue;
      if (step.reduces) {
        const void* sources[] = {place, into};
        void* to[] = {step.result == nullptr ? place : step.result + c.segment * kSegment};
        reduce(ReduceArgs{sources, 2, to, 1, size / size_of(op_.signature.dtype), op_.signature.dtype,
                          op_.signature.reduce, step.divisor});
      }
      advance(c, false);
      break;  // first send on what came: the neighbour may be waiting for it
    }
    return moved;
  }

  TcpRing& ring_;
  Operation& op_;
  std::span<const Step> steps_;
  std::vector<Lane> lanes_;
  std::size_t turns_ = 0;
};

Result<void> TcpRing::run(Operation& op, std::span<const Step> steps) {
  Run run(*this, op, steps);
  Result<void> ok = run.drive();
  if (ok) ++done_;
  return ok;
}

Result<void> TcpRing::all_reduce(Operation& op, std::byte* data, std::size_t count, int divisor) {
  if (size() == 1) return {};
  Result<void> same = begin(op);
  if (!same) return same;
  const std::size_t n = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(index_);
  const std::size_t element = size_of(op.signature.dtype);
  const std::size_t line = 64 / element, stride = ((count + n - 1) / n + line - 1) / line * line;
  const auto part = [&](std::size_t p) {
    const std::size_t begin = std::min(p % n * stride, count), end = std::min(begin + stride, count);
    return Part{data + begin * element, (end - begin) * element};
  };
  std::vector<Step> steps;
  for (std::size_t s = 0; s < 2 * n - 2; ++s) {
    Step step;
    step.send = part(me + 2 * n - s);
    step.receive = part(me + 2 * n - s - 1);
    step.reduces = s < n - 1;
    step.divisor = s == n - 2 ? divisor : 1;
    steps.push_back(step);
  }
  return run(op, steps);
}

Result<void> TcpRing::reduce_scatter(Operation& op, std::span<const Part> parts, std::byte* result, int divisor) {
  if (size() == 1) {
    if (result != parts[0].data && parts[0].size_bytes > 0) std::memcpy(result, parts[0].data, parts[0].size_bytes);
    return {};
  }
  Result<void> same = begin(op);
  if (!same) return same;
  const std::size_t n = parts.size(), me = static_cast<std::size_t>(index_);
  std::vector<Step> steps;
  for (std::size_t s = 0; s + 1 < n; ++s) {
    Step step;
    step.send = parts[(me + 2 * n - s - 1) % n];
    step.receive = parts[(me + 2 * n - s - 2) % n];
    step.reduces = true;
    if (s + 2 == n) {
      step.result = result;
      step.divisor = divisor;
    }
    steps.push_back(step);
  }
  return run(op, steps);
}

Result<void> TcpRing::all_gather(Operation& op, std::span<const Part> parts) {
  if (size() == 1) return {};
  Result<void> same = begin(op);
  if (!same) return same;
  const std::size_t n = parts.size(), me = static_cast<std::size_t>(index_);
  std::vector<Step> steps;
  for (std::size_t s = 0; s + 1 < n; ++s) {
    Step step;
    step.send = parts[(me + n - s) % n];
    step.receive = parts[(me + 2 * n - s - 1) % n];
    steps.push_back(step);
  }
  return run(op, steps);
}

Result<void> TcpRing::broadcast(Operation& op, std::byte* data, std::size_t size_bytes, int root_index) {
  if (size() == 1) return {};
  Result<void> same = begin(op);
  if (!same) return same;
  const int distance = (index_ - root_index + size()) % size();
  const Part whole{data, size_bytes};
  Step in, out;
  if (distance > 0) in.receive = whole;
  if (distance + 1 < size()) out.send = whole;
  const Step steps[] = {in, out};
  return run(op, steps);
}

Result<void> TcpRing::barrier(Operation& op) {
  std::vector<std::byte> tokens(ranks_.size());
  std::vector<Part> parts;
  for (std::byte& t : tokens) parts.push_back(Part{&t, 1});
  return all_gather(op, parts);
}

Result<void> TcpRing::agree(Operation& op) {
  if (size() == 1) return {};
  Result<void> same = begin(op);
  if (same) ++done_;
  return same;
}

}  // namespace ddprun::comm
