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

namespace ddprun::comm {
namespace {

constexpr std::uint8_t kSignature = 1, kAbort = 2, kBye = 3, kPing = 4, kPong = 5;
constexpr std::size_t kFrameHeader = 5, kMostPayload = 8192;
constexpr int kSliceMs = 20;
constexpr auto kPingPatience =
    std::chrono::milliseconds(1000);  // of a busy machine: it may not run a process for half of it
// Neighbours that answer are themselves waiting for somebody; who knows more tells it within this time.
constexpr auto kGrace = std::chrono::milliseconds(3000);

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

}  // namespace

bool TcpRing::would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

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
    case kPing: {
      WireWriter pong;
      pong.u64(progress_.sequence);
      pong.u64(progress_.sent);
      pong.u8(progress_.starved ? 1 : 0);
      send_frame(from, kPong, pong.bytes());
      return {};
    }
    case kPong:
      from.told.sequence = reader.u64();
      from.told.sent = reader.u64();
      from.told.starved = reader.u8() != 0;
      if (!reader.finished()) break;
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
  op.missing.add(who.rank);
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

// At the deadline: a neighbour that does not answer a ping is stopped, gone or cut off. One that answers says what it
// has sent: more than has come here means that the way is slow; all that has come while it waits for nobody, that it is
// slow itself. Else somebody further away is late, whose neighbour knows more and tells it.
Result<void> TcpRing::check_deadline(Operation& op) {
  const TimePoint now = SteadyClock::now();
  if (op.look(now)) next_.pinged = previous_.pinged = false;
  if (now < op.deadline()) return {};
  const auto missing = [&](const Neighbour& n, std::string_view how) {
    op.missing.add(n.rank);
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
  const Progress &mine = progress_, &theirs = previous_.told;
  if (mine.received < mine.wanted && theirs.sequence >= mine.sequence) {
    const std::string came = fmt::format("{} of {} bytes came from it in time", mine.received, mine.wanted);
    if (theirs.sequence > mine.sequence || theirs.sent > mine.received) {
      return missing(previous_, came + ", more are on their way: the network is too slow for this timeout");
    }
    if (!theirs.starved) return missing(previous_, came + ": it is too slow for this timeout");
  }
  if (now < op.deadline() + kGrace) return {};
  if (mine.received == mine.wanted && mine.wanted > 0) return missing(next_, "it does not take what is sent to it");
  return missing(previous_, "it waits for others in its turn");
}

Result<void> TcpRing::idle(Operation& op, std::span<const pollfd> more) {
  polls_.assign({{previous_.closed ? -1 : previous_.control.get(), POLLIN, 0},
                 {next_.closed ? -1 : next_.control.get(), POLLIN, 0},
                 {wake_.get(), POLLIN, 0}});
  polls_.insert(polls_.end(), more.begin(), more.end());
  const int n = ::poll(polls_.data(), polls_.size(), kSliceMs);
  if (auto told = news()) return *told;
  if (n <= 0 && watch_) {
    if (auto told = watch_()) return fail(*told);
  }
  return check_deadline(op);
}

Result<bool> TcpRing::matches(Operation& op) {
  if (previous_.signatures.empty()) {
    Result<void> ok = read_control(previous_);
    if (!ok) return ok.error();
  }
  if (previous_.signatures.empty()) {
    if (!previous_.closed && !previous_.left_after.has_value()) return false;
    return fail(gone(op, previous_, "its connection was closed"));
  }
  const Signature theirs = previous_.signatures.front();
  previous_.signatures.pop_front();
  if (theirs == op.signature) return true;
  return fail(Error(Errc::invalid_argument, describe_mismatch(previous_.rank, theirs, rank(), op.signature)));
}

Result<void> TcpRing::begin(Operation& op) {
  if (auto told = news()) return *told;
  if (watch_) {
    if (auto told = watch_()) return fail(*told);
  }
  next_.pinged = previous_.pinged = false;
  progress_ = Progress{};
  progress_.sequence = op.signature.sequence;
  send_frame(next_, kSignature, encode(op.signature));
  return {};
}

}  // namespace ddprun::comm
