#include "common/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>

#include "common/clock.h"
#include "common/wire.h"

namespace ddprun {
namespace {

constexpr char kMagic[8] = {'d', 'd', 'p', 'r', 'f', 'l', 'y', '1'};
constexpr std::uint32_t kVersion = 2;

FlightHeader* header_of(void* memory) { return static_cast<FlightHeader*>(memory); }

template <std::size_t N>
std::string_view name_at(const std::array<std::string_view, N>& names, std::uint8_t index) {
  return index < N ? names[index] : std::string_view("unknown");
}

bool is_waiting(const FlightEntry& e) { return e.state == FlightState::queued || e.state == FlightState::running; }

std::string seconds(std::int64_t ns) {
  return fmt::format("{:.1f} s", static_cast<double>(std::max<std::int64_t>(ns, 0)) * 1e-9);
}

std::string list_of_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  constexpr std::size_t kMost = 16;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return text;
}

}  // namespace

void MissingRanks::add(int rank) {
  if (rank < 0) return;
  const auto wanted = static_cast<std::uint32_t>(rank);
  if (bits == 0) first = wanted;
  if (wanted < first) {
    const std::uint32_t shift = first - wanted;
    if (shift > static_cast<std::uint32_t>(std::countl_zero(bits))) {
      ++more;
      return;
    }
    bits <<= shift;
    first = wanted;
  }
  if (wanted - first >= 64) {
    ++more;
  } else {
    bits |= std::uint64_t{1} << (wanted - first);
  }
}

std::vector<int> MissingRanks::ranks() const {
  std::vector<int> out;
  for (int i = 0; i < 64; ++i) {
    if (((bits >> i) & 1) != 0) out.push_back(static_cast<int>(first) + i);
  }
  return out;
}

Result<UniqueFd> make_flight_recorder(std::string_view name) {
  UniqueFd fd(::memfd_create(std::string(name).c_str(), 0));
  if (!fd) return Error::from_errno(errno, "cannot make the flight recorder (memfd_create)");
  if (::ftruncate(fd.get(), static_cast<off_t>(kFlightBytes)) != 0) {
    return Error::from_errno(errno, "cannot size the flight recorder");
  }
  return fd;
}

FlightWriter::FlightWriter(void* memory, UniqueFd own) : memory_(memory), own_(std::move(own)) {}

FlightWriter::~FlightWriter() { ::munmap(memory_, kFlightBytes); }

Result<std::unique_ptr<FlightWriter>> FlightWriter::attach(int fd, int rank, int world_size, int restart_count) {
  UniqueFd own;
  if (fd < 0) {
    auto made = make_flight_recorder("ddprun-flight");
    if (!made) return made.error();
    own = std::move(made).value();
    ::fcntl(own.get(), F_SETFD, FD_CLOEXEC);
    fd = own.get();
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return Error::from_errno(errno, fmt::format("flight recorder: descriptor {} (DDPRUN_RECORDER_FD)", fd));
  }
  if (static_cast<std::size_t>(info.st_size) != kFlightBytes) {
    return Error(Errc::invalid_argument,
                 fmt::format("flight recorder: descriptor {} (DDPRUN_RECORDER_FD) has {} bytes, a recorder has {}", fd,
                             info.st_size, kFlightBytes));
  }
  void* memory = ::mmap(nullptr, kFlightBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return Error::from_errno(errno, "cannot map the flight recorder");
  // A communicator that is rebuilt in the same process starts over: its sequence numbers begin at 0 again.
  std::memset(memory, 0, kFlightBytes);
  FlightHeader* header = header_of(memory);
  header->version = kVersion;
  header->entries = kFlightEntries;
  header->pid = ::getpid();
  header->rank = rank;
  header->world_size = world_size;
  header->restart_count = restart_count;
  header->attached_ns = SteadyClock::now().time_since_epoch().count();
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header->magic, kMagic, sizeof kMagic);  // last: a reader looks for it first
  return std::unique_ptr<FlightWriter>(new FlightWriter(memory, std::move(own)));
}

FlightEntry* FlightWriter::entry(std::uint64_t sequence) {
  auto* first = reinterpret_cast<FlightEntry*>(static_cast<std::byte*>(memory_) + sizeof(FlightHeader));
  return first + sequence % kFlightEntries;
}

void FlightWriter::queued(std::uint64_t sequence, std::uint8_t op, std::uint8_t dtype, std::uint8_t reduction,
                          std::uint64_t count, std::int32_t root, std::int64_t now_ns) {
  FlightEntry* e = entry(sequence);
  std::atomic_ref<std::uint64_t> number(e->sequence_plus_1);
  number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  e->count = count;
  e->enqueued_ns = now_ns;
  e->started_ns = 0;
  e->ended_ns = 0;
  e->root = root;
  e->state = FlightState::queued;
  e->op = op;
  e->dtype = dtype;
  e->reduction = reduction;
  e->missing = {};
  number.store(sequence + 1, std::memory_order_release);
  std::atomic_ref<std::uint64_t>(header_of(memory_)->started).store(sequence + 1, std::memory_order_relaxed);
}

void FlightWriter::running(std::uint64_t sequence, std::int64_t now_ns) {
  FlightEntry* e = entry(sequence);
  e->started_ns = now_ns;
  std::atomic_ref<FlightState>(e->state).store(FlightState::running, std::memory_order_release);
}

void FlightWriter::ended(std::uint64_t sequence, FlightState state, MissingRanks missing, std::int64_t now_ns) {
  FlightEntry* e = entry(sequence);
  if (e->sequence_plus_1 != sequence + 1) return;  // more than 1,024 were queued behind it
  e->ended_ns = now_ns;
  e->missing = missing;
  std::atomic_ref<FlightState>(e->state).store(state, std::memory_order_release);
}

const FlightEntry* FlightLog::current() const {
  const FlightEntry* found = nullptr;
  for (const FlightEntry& e : entries) {
    if (is_waiting(e) || e.state == FlightState::failed) return &e;  // the oldest one: what it hangs in
    found = &e;
  }
  return found;
}

Result<FlightLog> parse_flight_recorder(std::span<const std::byte> bytes) {
  if (bytes.size() != kFlightBytes) {
    return Error(Errc::malformed, fmt::format("flight recorder: {} bytes instead of {}", bytes.size(), kFlightBytes));
  }
  FlightLog log;
  std::memcpy(&log.header, bytes.data(), sizeof log.header);
  static constexpr char kZero[8] = {};
  if (std::memcmp(log.header.magic, kZero, sizeof kZero) == 0) {
    return Error(Errc::not_found, "flight recorder: empty, the worker has made no communicator of ddprun's");
  }
  if (std::memcmp(log.header.magic, kMagic, sizeof kMagic) != 0 || log.header.version != kVersion ||
      log.header.entries != kFlightEntries) {
    return Error(Errc::malformed, "flight recorder: not written by this version of ddprun");
  }
  for (std::uint32_t i = 0; i < kFlightEntries; ++i) {
    FlightEntry e;
    std::memcpy(&e, bytes.data() + sizeof(FlightHeader) + i * sizeof(FlightEntry), sizeof e);
    const bool whole = e.sequence_plus_1 != 0 && e.sequence() % kFlightEntries == i;
    if (whole && e.state != FlightState::empty && e.state <= FlightState::aborted) log.entries.push_back(e);
  }
  std::sort(log.entries.begin(), log.entries.end(),
            [](const FlightEntry& a, const FlightEntry& b) { return a.sequence_plus_1 < b.sequence_plus_1; });
  return log;
}

Result<FlightLog> read_flight_recorder(int fd) {
  std::vector<std::byte> bytes(kFlightBytes);
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t n = ::pread(fd, bytes.data() + have, bytes.size() - have, static_cast<off_t>(have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error::from_errno(errno, "flight recorder");
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  bytes.resize(have);
  return parse_flight_recorder(bytes);
}

std::string describe(const FlightEntry& e) {
  const std::string_view op = name_at(kFlightOps, e.op);
  std::string text = fmt::format("{} #{}", op, e.sequence());
  if (op == "barrier") return text;
  text += fmt::format(" of {} {}", e.count, op == "allocate" ? "bytes" : name_at(kFlightTypes, e.dtype));
  const bool reduces = op == "all_reduce" || op == "reduce_scatter";
  if (reduces && e.reduction != 0) text += fmt::format(" ({})", name_at(kFlightReductions, e.reduction));
  if (op == "broadcast") text += fmt::format(" from rank {}", e.root);
  return text;
}

std::string flight_verdict(std::span<const FlightLog> logs, std::int64_t now_ns) {
  struct Waiting {
    std::vector<int> ranks;
    std::int64_t since = 0;
    std::string what;
  };
  std::map<std::uint64_t, Waiting> waiting;  // by sequence; several entries of one sequence are a desync
  std::vector<std::string> lines;
  std::uint64_t front = 0;
  bool any = false;
  for (const FlightLog& log : logs) {
    const FlightEntry* e = log.current();
    if (e == nullptr || !(is_waiting(*e) || e->state == FlightState::failed)) continue;
    any = true;
    front = std::max(front, e->sequence());
    Waiting& w = waiting[e->sequence()];
    const std::int64_t since = e->started_ns != 0 ? e->started_ns : e->enqueued_ns;
    if (w.ranks.empty()) {
      w.since = since;
      w.what = describe(*e);
    } else if (w.what != describe(*e)) {
      lines.push_back(fmt::format("ranks disagree: rank {} is in {}, rank {} in {}", log.header.rank, describe(*e),
                                  w.ranks.front(), w.what));
    }
    w.since = std::min(w.since, since);
    w.ranks.push_back(log.header.rank);
  }
  if (!any) return {};
  for (auto& [sequence, w] : waiting) {
    (void)sequence;
    const bool one = w.ranks.size() == 1;
    lines.push_back(fmt::format("{} {} in {} for {}", list_of_ranks(w.ranks), one ? "waits" : "wait", w.what,
                                seconds(now_ns - w.since)));
  }
  // Those that have not come as far as the others: the ones that everybody waits for.
  for (const FlightLog& log : logs) {
    const FlightEntry* e = log.current();
    const bool waits = e != nullptr && (is_waiting(*e) || e->state == FlightState::failed);
    if (waits && e->sequence() >= front) continue;
    if (waits) {
      lines.push_back(fmt::format("rank {} is behind: it is still in {}", log.header.rank, describe(*e)));
    } else if (e == nullptr) {
      lines.push_back(fmt::format("rank {} is missing: it has begun no collective", log.header.rank));
    } else if (e->sequence() < front) {
      lines.push_back(fmt::format("rank {} is missing: its last collective is {}, ended {} ago", log.header.rank,
                                  describe(*e), seconds(now_ns - e->ended_ns)));
    }
  }
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string flight_table(const FlightLog& log, std::size_t last, std::int64_t now_ns) {
  static constexpr std::array<std::string_view, 6> kStates = {"empty", "queued", "running",
                                                              "done",  "failed", "aborted"};
  std::string text = fmt::format("rank {} of {}, pid {}, attempt {}: {} collectives begun\n", log.header.rank,
                                 log.header.world_size, log.header.pid, log.header.restart_count, log.header.started);
  text +=
      fmt::format("{:<44} {:<8} {:>12} {:>12} {:>12}\n", "collective", "state", "ago (s)", "queued (us)", "ran (us)");
  const std::size_t from = log.entries.size() > last ? log.entries.size() - last : 0;
  for (std::size_t i = from; i < log.entries.size(); ++i) {
    const FlightEntry& e = log.entries[i];
    const auto us = [](std::int64_t ns) { return fmt::format("{:.1f}", static_cast<double>(ns) * 1e-3); };
    const std::string queued = e.started_ns == 0 ? us(now_ns - e.enqueued_ns) : us(e.started_ns - e.enqueued_ns);
    const std::string ran = e.started_ns == 0 ? "-" : us((e.ended_ns == 0 ? now_ns : e.ended_ns) - e.started_ns);
    text +=
        fmt::format("{:<44} {:<8} {:>12.3f} {:>12} {:>12}\n", describe(e), kStates[static_cast<std::size_t>(e.state)],
                    static_cast<double>(now_ns - e.enqueued_ns) * 1e-9, queued, ran);
    if (!e.missing.empty()) {
      text += fmt::format("  missing: {}{}\n", list_of_ranks(e.missing.ranks()),
                          e.missing.more == 0 ? "" : fmt::format(" and {} more", e.missing.more));
    }
  }
  return text;
}

namespace {

constexpr std::string_view kPackMagic = "ddpflp1\n";

// Times relative to `now_ns`; 0 stays "not yet".
void rebase(FlightLog& log, std::int64_t now_ns) {
  const auto shift = [now_ns](std::int64_t& t) {
    if (t != 0) t = std::min<std::int64_t>(t - now_ns, -1);
  };
  shift(log.header.attached_ns);
  for (FlightEntry& e : log.entries) {
    shift(e.enqueued_ns);
    shift(e.started_ns);
    shift(e.ended_ns);
  }
}

}  // namespace

std::string pack_flight(std::span<const FlightLog> logs, std::size_t max_bytes, std::int64_t now_ns) {
  const std::size_t fixed = kPackMagic.size() + 4 + logs.size() * (sizeof(FlightHeader) + 4);
  if (fixed > max_bytes) return {};
  const std::size_t each = logs.empty() ? 0 : (max_bytes - fixed) / logs.size() / sizeof(FlightEntry);
  WireWriter w;
  w.raw(kPackMagic);
  w.u32(static_cast<std::uint32_t>(logs.size()));
  for (FlightLog log : logs) {
    rebase(log, now_ns);
    if (log.entries.size() > each)
      log.entries.erase(log.entries.begin(), log.entries.end() - static_cast<std::ptrdiff_t>(each));
    w.raw(std::string_view(reinterpret_cast<const char*>(&log.header), sizeof log.header));
    w.u32(static_cast<std::uint32_t>(log.entries.size()));
    for (const FlightEntry& e : log.entries) w.raw(std::string_view(reinterpret_cast<const char*>(&e), sizeof e));
  }
  return std::move(w).take();
}

Result<std::vector<FlightLog>> unpack_flight(std::string_view bytes) {
  const Error malformed(Errc::malformed, "flight recorders: not written by this version of ddprun");
  WireReader r(bytes);
  if (r.raw(kPackMagic.size()) != kPackMagic) return malformed;
  const std::uint32_t count = r.u32();
  std::vector<FlightLog> logs;
  for (std::uint32_t i = 0; i < count && !r.failed(); ++i) {
    FlightLog log;
    const std::string_view header = r.raw(sizeof log.header);
    const std::uint32_t entries = r.u32();
    if (r.failed() || entries > kFlightEntries) return malformed;
    std::memcpy(&log.header, header.data(), sizeof log.header);
    for (std::uint32_t k = 0; k < entries; ++k) {
      const std::string_view entry = r.raw(sizeof(FlightEntry));
      if (r.failed()) return malformed;
      FlightEntry e;
      std::memcpy(&e, entry.data(), sizeof e);
      if (e.sequence_plus_1 == 0 || e.state > FlightState::aborted) return malformed;
      log.entries.push_back(e);
    }
    logs.push_back(std::move(log));
  }
  if (!r.finished()) return malformed;
  return logs;
}

}  // namespace ddprun
