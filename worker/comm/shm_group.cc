#include "worker/comm/shm_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

namespace ddprun::comm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr auto kSlice = std::chrono::milliseconds(20);  // between looks at peers, verdict and deadline while waiting
constexpr auto kLongestYield = std::chrono::milliseconds(3);  // about a time slice
constexpr std::size_t kTextSize = 1900;

std::size_t round_up(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration limit) {
  const auto ns = std::max<std::int64_t>(std::chrono::nanoseconds(limit).count(), 0);
  const timespec relative{ns / 1'000'000'000, ns % 1'000'000'000};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected, &relative, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

// 'T' of /proc/PID/stat: stopped by a signal. 0 if it cannot be told.
char process_state(pid_t pid) {
  std::FILE* file = std::fopen(fmt::format("/proc/{}/stat", pid).c_str(), "re");
  if (file == nullptr) return 0;
  char text[512] = {};
  const std::size_t n = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const char* end = static_cast<const char*>(::memrchr(text, ')', n));
  return end != nullptr && end + 2 < text + n ? end[2] : 0;
}

}  // namespace

struct ShmGroup::Descriptor {
  Signature signature;
  Handle in;
  Handle out;
};

struct ShmGroup::Control {
  std::atomic<std::uint32_t> verdict;  // 0 none, 1 being written, 2 there
  std::int32_t rank;                   // whose it is
  std::int32_t code;                   // Errc
  char text[kTextSize];
};

struct ShmGroup::RankArea {
  alignas(64) std::atomic<std::uint32_t> phase;
  std::atomic<std::uint32_t> left;  // 1: its communicator is gone
  std::uint64_t left_after;         // sequence of its last operation + 1
  alignas(64) std::atomic<std::uint32_t> waiters;
  alignas(64) Descriptor descriptors[2];
  cpu_set_t cpus;  // where it may run; written before its first arrival
};

ShmGroup::ShmGroup(ShmSetup setup, std::size_t staging_bytes)
    : setup_(std::move(setup)),
      local_rank_(setup_.local_rank),
      size_(static_cast<int>(setup_.members.size())),
      members_(setup_.members),
      staging_bytes_(round_up(staging_bytes, kPage)) {}

Result<std::unique_ptr<ShmGroup>> ShmGroup::create(ShmSetup setup, std::size_t staging_bytes) {
  std::unique_ptr<ShmGroup> group(new ShmGroup(std::move(setup), staging_bytes));
  Result<void> mapped = group->map();
  if (!mapped) return mapped.error();
  return group;
}

Result<void> ShmGroup::map() {
  // Page 0: control. Then for each rank a page of its own words, two flat buffers, four staging buffers.
  const std::size_t each = kPage + 2 * kFlatBytes + 4 * staging_bytes_;
  base_bytes_ = kPage + static_cast<std::size_t>(size_) * each;
  file_end_ = base_bytes_;
  // Pages come when they are touched; a memfd knows no size limit, so that cannot fail as a full /dev/shm would.
  // Larger is never made smaller: a faster rank may already have added memory behind this.
  if (::fallocate(setup_.memory.get(), 0, 0, static_cast<off_t>(kPage)) != 0 ||
      ::fallocate(setup_.memory.get(), 0, static_cast<off_t>(base_bytes_ - kPage), static_cast<off_t>(kPage)) != 0) {
    return Error::from_errno(errno, fmt::format("shared memory: no room for {} bytes", base_bytes_));
  }
  void* memory = ::mmap(nullptr, base_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, setup_.memory.get(), 0);
  if (memory == MAP_FAILED) return Error::from_errno(errno, "cannot map shared memory");
  base_ = static_cast<std::byte*>(memory);
  cpu_set_t& mine = area(local_rank_).cpus;
  if (::sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_ZERO(&mine);
  return {};
}

// Ranks that have a core each may wait for each other awake; those that share cores must give them away. After the
// first arrival of all, when everybody has published where it may run (a launcher may have bound each to cores of its
// own).
void ShmGroup::choose_patience() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int p = 0; p < size_; ++p) CPU_OR(&all, &all, &area(p).cpus);
  const bool shared = size_ > CPU_COUNT(&all);
  spin_turns_ = shared ? 20 : 100;  // 100: 2 to 3 us
  yield_turns_ = shared ? 50 : 300;
}

ShmGroup::~ShmGroup() {
  const bool ours = usable_here();
  if (base_ != nullptr) {
    if (ours) {
      RankArea& mine = area(local_rank_);
      mine.left_after = sequence_ + 1;
      mine.left.store(1, std::memory_order_release);
      futex_wake(mine.phase);
    }
    ::munmap(base_, base_bytes_);
  }
  for (const Region& region : regions_) ::munmap(region.memory, region.stride * static_cast<std::size_t>(size_));
}

ShmGroup::RankArea& ShmGroup::area(int local) const {
  static_assert(sizeof(RankArea) <= kPage && sizeof(Control) <= kPage);
  const std::size_t each = kPage + 2 * kFlatBytes + 4 * staging_bytes_;
  return *reinterpret_cast<RankArea*>(base_ + kPage + static_cast<std::size_t>(local) * each);
}

const ShmGroup::Descriptor& ShmGroup::descriptor(int local) const { return area(local).descriptors[sequence_ % 2]; }
ShmGroup::Handle ShmGroup::in_of(int local) const { return descriptor(local).in; }
ShmGroup::Handle ShmGroup::out_of(int local) const { return descriptor(local).out; }

std::byte* ShmGroup::flat(const Operation& op, int local) const {
  return reinterpret_cast<std::byte*>(&area(local)) + kPage + (op.signature.sequence % 2) * kFlatBytes;
}

std::byte* ShmGroup::staging(int which, int local) const {
  return reinterpret_cast<std::byte*>(&area(local)) + kPage + 2 * kFlatBytes +
         static_cast<std::size_t>(which) * staging_bytes_;
}

ShmGroup::Handle ShmGroup::find(const void* data, std::size_t size_bytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  for (std::size_t r = 0; r < regions_.size(); ++r) {
    const Region& region = regions_[r];
    const std::byte* mine = region.memory + static_cast<std::size_t>(local_rank_) * region.stride;
    if (at >= mine && at + size_bytes <= mine + region.stride) {
      return (static_cast<Handle>(r) << 44) | static_cast<Handle>(at - mine);
    }
  }
  return kForeign;
}

std::byte* ShmGroup::address(Handle handle, int local) const {
  const Region& region = regions_[handle >> 44];
  return region.memory + static_cast<std::size_t>(local) * region.stride + (handle & ((Handle{1} << 44) - 1));
}

void ShmGroup::publish_phase() {
  RankArea& mine = area(local_rank_);
  ++phase_;
  // seq_cst, as the waiter's side: either we see that somebody waits, or he sees the new phase.
  mine.phase.store(phase_, std::memory_order_seq_cst);
  if (mine.waiters.load(std::memory_order_seq_cst) != 0) futex_wake(mine.phase);
}

Result<void> ShmGroup::arrive(Operation& op, Handle in, Handle out) {
  sequence_ = op.signature.sequence;
  Descriptor& mine = area(local_rank_).descriptors[sequence_ % 2];
  mine.signature = op.signature;
  mine.in = in;
  mine.out = out;
  publish_phase();
  Result<void> all = await_all(op, Duration(0));
  if (!all) return all;
  if (yield_turns_ == 0) choose_patience();
  for (int p = 0; p < size_; ++p) {
    const Signature& theirs = descriptor(p).signature;
    if (theirs == op.signature) continue;
    return fail(Error(Errc::invalid_argument, describe_mismatch(rank_of(p), theirs, rank(), op.signature)));
  }
  return {};
}

Result<void> ShmGroup::step(Operation& op) {
  publish_phase();
  return await_all(op, grace_);
}

Result<void> ShmGroup::await_all(Operation& op, Duration grace) {
  for (int p = 0; p < size_; ++p) {
    const std::atomic<std::uint32_t>& phase = area(p).phase;
    bool there = static_cast<std::int32_t>(phase.load(std::memory_order_acquire) - phase_) >= 0;
    for (int i = 0; !there && i < spin_turns_; ++i) {
      relax();
      there = static_cast<std::int32_t>(phase.load(std::memory_order_acquire) - phase_) >= 0;
    }
    // The peer may be waiting for this very core: let it run before sleeping. When that takes long, others than the
    // ranks use the cores: each yield may cost all their time slices then, and nothing else is looked at meanwhile.
    const TimePoint yield_until = there || yield_turns_ == 0 ? TimePoint() : SteadyClock::now() + kLongestYield;
    for (int i = 0; !there && i < yield_turns_; ++i) {
      ::sched_yield();
      there = static_cast<std::int32_t>(phase.load(std::memory_order_acquire) - phase_) >= 0;
      if (!there && SteadyClock::now() >= yield_until) break;
    }
    if (there) continue;
    Result<void> came = await_slowly(op, p, grace);
    if (!came) return came;
  }
  return {};
}

Result<void> ShmGroup::await_slowly(Operation& op, int local, Duration grace) {
  RankArea& theirs = area(local);
  const TimePoint since = SteadyClock::now();
  op.look(since);
  while (true) {
    theirs.waiters.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = theirs.phase.load(std::memory_order_seq_cst);
    const bool there = static_cast<std::int32_t>(seen - phase_) >= 0;
    if (!there && theirs.left.load(std::memory_order_acquire) == 0) {
      const Duration left = op.deadline() + grace - SteadyClock::now();
      futex_wait(theirs.phase, seen, std::min<Duration>(kSlice, left));
    }
    op.look(SteadyClock::now());
    theirs.waiters.fetch_sub(1, std::memory_order_seq_cst);
    if (there || static_cast<std::int32_t>(theirs.phase.load(std::memory_order_acquire) - phase_) >= 0) {
      if (SteadyClock::now() < op.deadline() + grace) return {};
      return fail(too_slow(op, local));  // each step comes in the end, but the deadline is of the whole operation
    }
    Result<void> good = check_peers(op, since, grace);
    if (!good) return good;
  }
}

Result<void> ShmGroup::check_peers(Operation& op, TimePoint since, Duration grace) {
  if (auto told = verdict()) return *told;
  for (int p = 0; p < size_; ++p) {
    if (p == local_rank_) continue;
    RankArea& theirs = area(p);
    const auto behind = [&] {
      return static_cast<std::int32_t>(theirs.phase.load(std::memory_order_acquire) - phase_) < 0;
    };
    if (!behind()) continue;
    const ShmMember& member = members_[static_cast<std::size_t>(p)];
    if (theirs.left.load(std::memory_order_acquire) != 0) {
      if (!behind()) continue;
      op.missing.add(member.rank);
      return fail(Error(
          Errc::peer_closed,
          fmt::format("rank {} returned early: it closed its communicator after {} collectives, while rank {} waits in "
                      "{}; missing ranks: {}",
                      member.rank, theirs.left_after, rank(), op.signature.describe(), member.rank)));
    }
    pollfd ended{member.pidfd.get(), POLLIN, 0};
    if (::poll(&ended, 1, 0) > 0 && behind()) {
      if (auto told = verdict()) return *told;  // it may have said why before it ended
      op.missing.add(member.rank);
      return fail(Error(Errc::peer_closed,
                        fmt::format("rank {} died (process {} ended), while rank {} waits in {}; missing ranks: {}",
                                    member.rank, member.pid, rank(), op.signature.describe(), member.rank)));
    }
  }
  if (watch_) {
    if (auto news = watch_()) return fail(*news);
  }
  // The grace is for a peer that waits for another host. One that is stopped waits for nobody: name it before that host
  // gives up on us.
  const TimePoint now = SteadyClock::now();
  if (now >= op.deadline() + grace || (now >= op.deadline() && somebody_is_stopped()))
    return fail(timed_out(op, since));
  return {};
}

bool ShmGroup::somebody_is_stopped() const {
  for (int p = 0; p < size_; ++p) {
    const bool behind = static_cast<std::int32_t>(area(p).phase.load(std::memory_order_acquire) - phase_) < 0;
    if (behind && process_state(members_[static_cast<std::size_t>(p)].pid) == 'T') return true;
  }
  return false;
}

Error ShmGroup::timed_out(Operation& op, TimePoint since) {
  std::string missing;
  for (int p = 0; p < size_; ++p) {
    const RankArea& theirs = area(p);
    if (static_cast<std::int32_t>(theirs.phase.load(std::memory_order_acquire) - phase_) >= 0) continue;
    const ShmMember& member = members_[static_cast<std::size_t>(p)];
    const bool stopped = process_state(member.pid) == 'T';
    missing += fmt::format("{}{} (process {}{})", missing.empty() ? "" : ", ", member.rank, member.pid,
                           stopped ? ", stopped by a signal" : "");
    op.missing.add(member.rank);
  }
  const double waited = std::chrono::duration<double>(SteadyClock::now() - since).count();
  return Error(Errc::timed_out, fmt::format("timed out after {:.1f} s in {} on rank {}; missing ranks: {}", waited,
                                            op.signature.describe(), rank(), missing));
}

Error ShmGroup::too_slow(Operation& op, int local) {
  const int late = rank_of(local);
  op.missing.add(late);
  return Error(Errc::timed_out,
               fmt::format("timed out in {} on rank {}; missing ranks: {} (it came after the deadline)",
                           op.signature.describe(), rank(), late));
}

void ShmGroup::wake_all() {
  for (int p = 0; p < size_; ++p) futex_wake(area(p).phase);
}

Error ShmGroup::fail(const Error& error) {
  auto& control = *reinterpret_cast<Control*>(base_);
  std::uint32_t none = 0;
  if (control.verdict.compare_exchange_strong(none, 1)) {
    control.rank = rank();
    control.code = static_cast<std::int32_t>(error.code());
    const std::size_t n = std::min(error.message().size(), kTextSize - 1);
    std::memcpy(control.text, error.message().data(), n);
    control.text[n] = '\0';
    control.verdict.store(2, std::memory_order_release);
    wake_all();
    return error;
  }
  return verdict().value_or(error);
}

void ShmGroup::abort(const std::string& reason) {
  (void)fail(Error(Errc::cancelled, fmt::format("rank {} aborted: {}", rank(), reason)));
}

std::optional<Error> ShmGroup::verdict() const {
  const auto& control = *reinterpret_cast<const Control*>(base_);
  if (control.verdict.load(std::memory_order_acquire) != 2) return std::nullopt;
  return Error(static_cast<Errc>(control.code), control.text);
}

std::optional<Error> ShmGroup::news() {
  if (auto told = verdict()) return told;
  const TimePoint now = SteadyClock::now();
  if (now < next_look_) return std::nullopt;
  next_look_ = now + kSlice;
  for (int p = 0; p < size_; ++p) {
    const ShmMember& member = members_[static_cast<std::size_t>(p)];
    pollfd ended{member.pidfd.get(), POLLIN, 0};
    if (p == local_rank_ || area(p).left.load(std::memory_order_acquire) != 0 || ::poll(&ended, 1, 0) <= 0) continue;
    return fail(Error(Errc::peer_closed, fmt::format("rank {} died (process {} ended); missing ranks: {}", member.rank,
                                                     member.pid, member.rank)));
  }
  return std::nullopt;
}

Result<std::byte*> ShmGroup::allocate(Operation& op) {
  Result<void> together = arrive(op);
  if (!together) return together.error();
  const std::size_t stride = std::max(round_up(op.signature.count, kPage), kPage);
  const std::size_t begin = file_end_;
  const std::size_t mine = begin + static_cast<std::size_t>(local_rank_) * stride;
  // Pages are taken by the rank that will use them most (its NUMA node), and now: a lack of memory is an error here,
  // not a signal in the middle of training.
  if (::fallocate(setup_.memory.get(), 0, static_cast<off_t>(mine), static_cast<off_t>(stride)) != 0) {
    return fail(
        Error::from_errno(errno, fmt::format("no shared memory for {} on rank {}", op.signature.describe(), rank())));
  }
  Result<void> stepped = step(op);
  if (!stepped) return stepped.error();
  const std::size_t all = stride * static_cast<std::size_t>(size_);
  void* memory = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, setup_.memory.get(),
                        static_cast<off_t>(begin));
  if (memory == MAP_FAILED) {
    return fail(Error::from_errno(
        errno, fmt::format("cannot map {} of shared memory on rank {}", op.signature.describe(), rank())));
  }
  file_end_ = begin + all;
  regions_.push_back(Region{static_cast<std::byte*>(memory), stride});
  return regions_.back().memory + static_cast<std::size_t>(local_rank_) * stride;
}

}  // namespace ddprun::comm
