#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "worker/comm/cut.h"
#include "worker/comm/reduce_kernels.h"
#include "worker/comm/tcp_ring.h"

// The data path of the ring: what is sent when, and the algorithms that are made of it.
namespace ddprun::comm {
namespace {

// What one connection carries before it is the next one's turn.
constexpr std::size_t kSegment = 1024 * 1024;
// Bytes of one call: what was received is added, and what was added goes out, while it is in the second-level cache.
// Small pieces also keep the two directions even, so that little lies in socket buffers.
constexpr std::size_t kPiece = 256 * 1024;
// Turns without a byte (1 to 2 us each) before the process sleeps: a neighbour on a core of its own needs about as long
// to answer. Not longer, and no sched_yield(): on a busy machine that gives the core away for milliseconds, while
// poll() gets it back when the bytes come.
constexpr int kQuietTurns = 10;

}  // namespace

// Drives all steps of one operation over all data connections at once.
class TcpRing::Run {
 public:
  Run(TcpRing& ring, Operation& op, std::span<const Step> steps, std::byte* base, const Hooks* hooks)
      : ring_(ring), op_(op), steps_(steps), base_(base), hooks_(hooks), lanes_(ring.next_.data.size()) {
    for (std::size_t k = 0; k < lanes_.size(); ++k) {
      lanes_[k].send = lanes_[k].receive = Cursor{0, k, 0};
      settle(lanes_[k].send, true);
      settle(lanes_[k].receive, false);
    }
    for (const Step& step : steps_) ring_.progress_.wanted += step.receive.size_bytes;
    if (hooks_ != nullptr) plan_preparation();
  }

  Result<void> drive() {
    int quiet = 0;
    while (true) {
      auto moved = turn();
      if (!moved) return moved.error();
      if (!pending_) return {};
      if (*moved) {
        quiet = 0;
        Result<void> ok = look_up();
        if (!ok) return ok;
      } else if (!prepare_ahead()) {
        if (++quiet < kQuietTurns) continue;
        Result<void> ok = sleep();
        if (!ok) return ok;
      }
    }
  }

 private:
  // Segment `segment` of step `step`; lane k carries segments k, k + lanes, ...
  struct Cursor {
    std::size_t step = 0, segment = 0, offset = 0;
  };
  struct Lane {
    Cursor send, receive;
    std::size_t held = 0;  // bytes in the lane's scratch that are no whole element yet
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

  // One piece in each direction on each connection. Whether anything moved.
  Result<bool> turn() {
    bool moved = false;
    if (!matched_) {
      auto same = ring_.matches(op_);
      if (!same) return same;
      moved = matched_ = *same;
    }
    pending_ = !matched_;
    for (std::size_t k = 0; k < lanes_.size(); ++k) {
      if (matched_) {
        auto received = receive_piece(k);
        if (!received) return received;
        moved = moved || *received;
      }
      auto sent = send_piece(k);
      if (!sent) return sent;
      moved = moved || *sent;
      pending_ = pending_ || !finished(lanes_[k].send) || !finished(lanes_[k].receive);
    }
    return moved;
  }

  // While busy: news and the deadline count all the same, bytes may trickle in for ever.
  Result<void> look_up() {
    const bool late = SteadyClock::now() >= op_.deadline();
    if (!late && ++turns_ % 256 != 0) return {};
    if (auto told = ring_.news()) return *told;
    return ring_.check_deadline(op_);
  }

  Result<void> sleep() {
    wanted_.clear();
    bool can_send = false;
    for (std::size_t k = 0; k < lanes_.size(); ++k) {
      if (matched_ && !finished(lanes_[k].receive)) wanted_.push_back({ring_.previous_.data[k].get(), POLLIN, 0});
      if (sendable(k) == 0) continue;
      wanted_.push_back({ring_.next_.data[k].get(), POLLOUT, 0});
      can_send = true;
    }
    ring_.progress_.starved = !can_send;
    return ring_.idle(op_, wanted_);
  }

  // Bytes of the current segment that may go out: what goes out in step s came in with step s - 1, on the same lane.
  std::size_t sendable(std::size_t k) const {
    const Cursor &s = lanes_[k].send, &r = lanes_[k].receive;
    if (finished(s)) return 0;
    const std::size_t size = segment_size(s, true);
    if (s.step == 0 || steps_[s.step - 1].receive.size_bytes == 0) return size - s.offset;
    if (r.step >= s.step || (r.step + 1 == s.step && r.segment > s.segment)) return size - s.offset;
    return r.step + 1 == s.step && r.segment == s.segment ? r.offset - s.offset : 0;
  }

  Result<bool> send_piece(std::size_t k) {
    const std::size_t most = std::min(sendable(k), kPiece);
    if (most == 0) return false;
    Cursor& c = lanes_[k].send;
    const std::byte* from = part(c, true).data + c.segment * kSegment + c.offset;
    if (c.step == 0 && c.offset == 0) prepare(from);
    const ssize_t n = ::send(ring_.next_.data[k].get(), from, most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && would_block()) return false;
    if (n < 0) return ring_.fail(ring_.gone(op_, ring_.next_, std::strerror(errno)));
    ring_.progress_.sent += static_cast<std::uint64_t>(n);
    c.offset += static_cast<std::size_t>(n);
    if (c.offset == segment_size(c, true)) advance(c, true);
    return true;
  }

  Result<bool> receive_piece(std::size_t k) {
    Lane& lane = lanes_[k];
    Cursor& c = lane.receive;
    if (finished(c)) return false;
    const Step& step = steps_[c.step];
    const std::size_t size = segment_size(c, false);
    std::byte* place = step.receive.data + c.segment * kSegment;
    std::vector<std::byte>& scratch = ring_.scratch_[k];
    if (step.reduces && scratch.size() < kPiece) scratch.resize(kPiece);
    std::byte* into = step.reduces ? scratch.data() + lane.held : place + c.offset;
    const std::size_t most = std::min(size - c.offset, kPiece) - lane.held;
    const ssize_t n = ::recv(ring_.previous_.data[k].get(), into, most, MSG_DONTWAIT);
    if (n < 0 && would_block()) return false;
    if (n <= 0) {
      return ring_.fail(ring_.gone(op_, ring_.previous_, n == 0 ? "its connection was closed" : std::strerror(errno)));
    }
    ring_.progress_.received += static_cast<std::uint64_t>(n);
    std::size_t whole = static_cast<std::size_t>(n);
    if (step.reduces) {
      if (c.offset == 0) prepare(place);
      whole = add(step, lane, scratch.data(), static_cast<std::size_t>(n), place + c.offset,
                  step.result == nullptr ? place + c.offset : step.result + c.segment * kSegment + c.offset);
    }
    if (step.final && hooks_ != nullptr && whole > 0) {
      hooks_->finish(static_cast<std::size_t>(place + c.offset - base_), whole);
    }
    c.offset += whole;
    if (c.offset == size) advance(c, false);
    return true;
  }

  // Adds the whole elements among what is in `scratch`; keeps the rest of one for the next piece. Bytes that were
  // added.
  std::size_t add(const Step& step, Lane& lane, std::byte* scratch, std::size_t more, std::byte* place, std::byte* to) {
    const std::size_t element = size_of(op_.signature.dtype), have = lane.held + more;
    const std::size_t whole = have / element * element;
    const void* sources[] = {place, scratch};
    void* destinations[] = {to};
    reduce(ReduceArgs{sources, 2, destinations, 1, whole / element, op_.signature.dtype, op_.signature.reduce,
                      step.divisor});
    lane.held = have - whole;
    if (lane.held > 0) std::memmove(scratch, scratch + whole, lane.held);
    return whole;
  }

  // Preparation: each segment once, in the order in which the ring comes to them.
  void plan_preparation() {
    const auto plan = [this](const Part& p) {
      for (std::size_t at = 0; at < p.size_bytes; at += kSegment) {
        unprepared_.push_back(Part{p.data + at, std::min(kSegment, p.size_bytes - at)});
      }
    };
    plan(steps_.front().send);
    for (const Step& step : steps_) {
      if (step.reduces) plan(step.receive);
    }
  }
  void prepare(Part& segment) {
    if (segment.size_bytes == 0) return;
    hooks_->prepare(static_cast<std::size_t>(segment.data - base_), segment.size_bytes);
    segment.size_bytes = 0;
  }
  void prepare(const std::byte* begin) {
    if (hooks_ == nullptr) return;
    for (std::size_t i = next_unprepared_; i < unprepared_.size(); ++i) {
      if (unprepared_[i].data == begin) return prepare(unprepared_[i]);
    }
  }
  // With nothing to move: the next segment, as long as there is one.
  bool prepare_ahead() {
    while (next_unprepared_ < unprepared_.size()) {
      Part& next = unprepared_[next_unprepared_++];
      if (next.size_bytes == 0) continue;
      prepare(next);
      return true;
    }
    return false;
  }

  TcpRing& ring_;
  Operation& op_;
  std::span<const Step> steps_;
  std::byte* base_;
  const Hooks* hooks_;
  std::vector<Lane> lanes_;
  std::vector<Part> unprepared_;
  std::size_t next_unprepared_ = 0;
  std::vector<pollfd> wanted_;
  bool matched_ = false, pending_ = true;
  std::size_t turns_ = 0;
};

Result<void> TcpRing::run(Operation& op, std::span<const Step> steps, std::byte* base, const Hooks* hooks) {
  Result<void> begun = begin(op);
  if (!begun) return begun;
  Run run(*this, op, steps, base, hooks);
  Result<void> ok = run.drive();
  if (ok) ++done_;
  return ok;
}

Result<void> TcpRing::all_reduce(Operation& op, std::byte* data, std::size_t count, int divisor, const Hooks* hooks) {
  const std::size_t n = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(index_);
  const std::size_t element = size_of(op.signature.dtype);
  const Cut cut = Cut::at_lines(count, n, element);
  if (n == 1) {
    if (hooks != nullptr && count > 0) {
      hooks->prepare(0, count * element);
      hooks->finish(0, count * element);
    }
    return {};
  }
  const auto part = [&](std::size_t p) { return Part{data + cut.begin(p % n) * element, cut.size(p % n) * element}; };
  std::vector<Step> steps;
  for (std::size_t s = 0; s < 2 * n - 2; ++s) {
    Step step;
    step.send = part(me + 2 * n - s);
    step.receive = part(me + 2 * n - s - 1);
    step.reduces = s < n - 1;
    step.final = s + 1 >= n - 1;
    step.divisor = s == n - 2 ? divisor : 1;
    steps.push_back(step);
  }
  return run(op, steps, data, hooks);
}

Result<void> TcpRing::reduce_scatter(Operation& op, std::span<const Part> parts, std::byte* result, int divisor) {
  if (size() == 1) {
    if (result != parts[0].data && parts[0].size_bytes > 0) std::memcpy(result, parts[0].data, parts[0].size_bytes);
    return {};
  }
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
  return run(op, {});
}

}  // namespace ddprun::comm
