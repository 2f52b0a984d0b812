#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

// The last collectives of one worker, in a memfd that the launcher makes, passes down (DDPRUN_RECORDER_FD) and keeps:
// it can be read while the worker runs and after SIGKILL. One host, so native byte order; all integers naturally
// aligned. Layout, version 2:
//
//   offset  size  header (64 bytes)
//   0       8     magic "ddprfly1"
//   8       4     version = 2
//   12      4     entries = 1024
//   16      4     pid of the writer
//   20      4     rank
//   24      4     world_size
//   28      4     restart_count
//   32      8     started: collectives begun so far; entry of sequence s is slot s % entries
//   40      8     steady time (ns) at which the writer attached
//   48      16    zero
//   64      64*n  entries
//
//   offset  size  entry (64 bytes)
//   0       8     sequence + 1, written last (0 = empty); a reader that finds another number drops the entry
//   8       8     count, elements of one rank's part
//   16      8     steady ns: enqueued
//   24      8     steady ns: started (0 = not yet)
//   32      8     steady ns: ended (0 = not yet)
//   40      4     root
//   44      1     state: 1 queued, 2 running, 3 done, 4 failed, 5 aborted
//   45      1     op: index into kFlightOps
//   46      1     dtype: index into kFlightTypes
//   47      1     reduction: index into kFlightReductions
//   48      8     missing ranks when it failed: bit i = rank "first" + i
//   56      4     first
//   60      4     how many more were missing, too far from these to be named
namespace ddprun {

enum class FlightState : std::uint8_t { empty, queued, running, done, failed, aborted };

inline constexpr std::array<std::string_view, 6> kFlightOps = {"all_reduce",     "broadcast", "all_gather",
                                                               "reduce_scatter", "barrier",   "allocate"};
inline constexpr std::array<std::string_view, 6> kFlightTypes = {"f32", "f64", "bf16", "f16", "i32", "i64"};
inline constexpr std::array<std::string_view, 4> kFlightReductions = {"sum", "avg", "min", "max"};
inline constexpr std::uint32_t kFlightEntries = 1024;

struct FlightHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t entries;
  std::int32_t pid;
  std::int32_t rank;
  std::int32_t world_size;
  std::int32_t restart_count;
  std::uint64_t started;
  std::int64_t attached_ns;
  std::uint8_t reserved[16];
};
static_assert(sizeof(FlightHeader) == 64);

// The ranks that a collective waited for in vain. They are neighbours (those of one host, or one rank of a ring), so 64
// bits from the first of them on name all that matter, whatever their numbers.
struct MissingRanks {
  std::uint64_t bits = 0;
  std::uint32_t first = 0;
  std::uint32_t more = 0;

  void add(int rank);
  bool empty() const { return bits == 0 && more == 0; }
  std::vector<int> ranks() const;
  bool operator==(const MissingRanks&) const = default;
};
static_assert(sizeof(MissingRanks) == 16);

struct FlightEntry {
  std::uint64_t sequence_plus_1;
  std::uint64_t count;
  std::int64_t enqueued_ns;
  std::int64_t started_ns;
  std::int64_t ended_ns;
  std::int32_t root;
  FlightState state;
  std::uint8_t op;
  std::uint8_t dtype;
  std::uint8_t reduction;
  MissingRanks missing;

  std::uint64_t sequence() const { return sequence_plus_1 - 1; }
};
static_assert(sizeof(FlightEntry) == 64);

inline constexpr std::size_t kFlightBytes = sizeof(FlightHeader) + kFlightEntries * sizeof(FlightEntry);

// Launcher side: an empty recorder, close-on-exec off (it is to be inherited by one worker). Errors: system.
Result<UniqueFd> make_flight_recorder(std::string_view name);

// Worker side. Not thread-safe: one communicator writes, under its own lock.
class FlightWriter {
 public:
  // Adopts nothing: `fd` stays open and is the launcher's; fd < 0: makes a private recorder (for reports of our own).
  // Errors: invalid_argument when the descriptor is not a recorder, system.
  static Result<std::unique_ptr<FlightWriter>> attach(int fd, int rank, int world_size, int restart_count);
  ~FlightWriter();
  FlightWriter(const FlightWriter&) = delete;
  FlightWriter& operator=(const FlightWriter&) = delete;

  void queued(std::uint64_t sequence, std::uint8_t op, std::uint8_t dtype, std::uint8_t reduction, std::uint64_t count,
              std::int32_t root, std::int64_t now_ns);
  void running(std::uint64_t sequence, std::int64_t now_ns);
  void ended(std::uint64_t sequence, FlightState state, MissingRanks missing, std::int64_t now_ns);
  const std::byte* memory() const { return static_cast<const std::byte*>(memory_); }

 private:
  FlightWriter(void* memory, UniqueFd own);
  FlightEntry* entry(std::uint64_t sequence);

  void* memory_;
  UniqueFd own_;
};

// A snapshot of one worker's recorder.
struct FlightLog {
  FlightHeader header{};
  std::vector<FlightEntry> entries;  // by sequence; torn and empty ones are left out

  // The oldest collective that is queued, running or failed (what the worker hangs in), else the newest of all.
  // nullptr: it has begun none.
  const FlightEntry* current() const;
};

// Launcher side, at any time. Errors: not_found when no worker has attached, malformed when it is not a recorder.
Result<FlightLog> read_flight_recorder(int fd);
Result<FlightLog> parse_flight_recorder(std::span<const std::byte> bytes);

// "all_reduce #1042 of 4096 f32 (avg)"
std::string describe(const FlightEntry& entry);

// One verdict over all workers of a job that are at hand, for the last words: who is where and who is missing. Empty if
// nobody waits. Lines such as
//   ranks 0, 2, 3 wait in all_reduce #1042 of 4096 f32 for 12.3 s
//   rank 1 is missing: its last collective is barrier #1041, ended 12.4 s ago
// `now_ns`: steady time.
std::string flight_verdict(std::span<const FlightLog> logs, std::int64_t now_ns);

// What an agent sends for `ddpctl flight`: the logs of its workers, the newest entries of each first where `max_bytes`
// is short. Steady clocks of two hosts cannot be compared, so times travel as ages: after unpacking, "now" is 0.
// Layout: magic "ddpflp1" and '\n', u32 logs; for each: header (64 bytes), u32 entries, entries (64 bytes each).
std::string pack_flight(std::span<const FlightLog> logs, std::size_t max_bytes, std::int64_t now_ns);
// Errors: malformed.
Result<std::vector<FlightLog>> unpack_flight(std::string_view bytes);

// Table of the last `last` collectives of one worker, for `ddpctl flight`: sequence, operation, state, waited, took.
std::string flight_table(const FlightLog& log, std::size_t last, std::int64_t now_ns);

}  // namespace ddprun
