#include "common/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>

namespace ddprun {
namespace {

using ::testing::HasSubstr;
constexpr std::uint8_t kAllReduce = 0, kBarrier = 4, kF32 = 0;
constexpr std::int64_t kSecond = 1'000'000'000;

std::unique_ptr<FlightWriter> writer(int rank) {
  auto made = FlightWriter::attach(-1, rank, 4, 2);
  EXPECT_TRUE(made) << made.error().message();
  return std::move(made).value();
}

FlightLog log_of(const FlightWriter& w) {
  auto log = parse_flight_recorder(std::span(w.memory(), kFlightBytes));
  EXPECT_TRUE(log) << log.error().message();
  return std::move(log).value();
}

MissingRanks missing(const std::vector<int>& ranks) {
  MissingRanks missing_ranks;
  for (const int rank : ranks) missing_ranks.add(rank);
  return missing_ranks;
}

TEST(FlightRecorder, NamesMissingRanksWhateverTheirNumbers) {
  using Ranks = std::vector<int>;
  EXPECT_EQ(missing({}).ranks(), Ranks{});
  EXPECT_TRUE(missing({}).empty());
  EXPECT_EQ(missing({63, 64, 60}).ranks(), (Ranks{60, 63, 64}));
  EXPECT_EQ(missing({6007, 6000, 6063}).ranks(), (Ranks{6000, 6007, 6063}));
  EXPECT_EQ(missing({6063, 6000}).ranks(), (Ranks{6000, 6063}));
  EXPECT_EQ(missing({5, 5}).ranks(), Ranks{5});
  const MissingRanks far = missing({0, 63, 64, 1000});
  EXPECT_EQ(far.ranks(), (Ranks{0, 63}));
  EXPECT_EQ(far.more, 2u);
  EXPECT_EQ(missing({100, 0}).more, 1u);

  auto w = writer(0);
  w->queued(0, kAllReduce, kF32, 1, 4096, 0, 10);
  w->ended(0, FlightState::failed, missing({72, 71}), 30);
  EXPECT_THAT(flight_table(log_of(*w), 10, 1000), HasSubstr("missing: ranks 71, 72"));
}

TEST(FlightRecorder, LauncherReadsWhatTheWorkerWrote) {
  auto fd = make_flight_recorder("test");
  ASSERT_TRUE(fd);
  EXPECT_EQ(read_flight_recorder(fd->get()).error().code(), Errc::not_found);
  auto w = FlightWriter::attach(fd->get(), 3, 4, 2);
  ASSERT_TRUE(w);
  (*w)->queued(0, kAllReduce, kF32, 1, 4096, 0, 10);
  (*w)->running(0, 20);
  (*w)->ended(0, FlightState::failed, missing({2}), 30);
  auto log = read_flight_recorder(fd->get());
  ASSERT_TRUE(log);
  EXPECT_EQ(log->header.rank, 3);
  EXPECT_EQ(log->header.restart_count, 2);
  ASSERT_EQ(log->entries.size(), 1u);
  EXPECT_EQ(describe(log->entries[0]), "all_reduce #0 of 4096 f32 (avg)");
  EXPECT_EQ(log->entries[0].missing, missing({2}));
  EXPECT_THAT(flight_table(*log, 10, 1000), HasSubstr("missing: rank 2"));
}

TEST(FlightRecorder, KeepsTheLast1024) {
  auto w = writer(0);
  for (std::uint64_t s = 0; s < 3000; ++s) {
    w->queued(s, kBarrier, 0, 0, 0, 0, 1);
    w->running(s, 2);
    w->ended(s, FlightState::done, {}, 3);
  }
  const FlightLog log = log_of(*w);
  EXPECT_EQ(log.entries.size(), kFlightEntries);
  EXPECT_EQ(log.entries.front().sequence(), 3000u - kFlightEntries);
  EXPECT_EQ(log.entries.back().sequence(), 2999u);
  EXPECT_EQ(log.header.started, 3000u);
}

TEST(FlightRecorder, StrangeBytesAreRefused) {
  std::vector<std::byte> bytes(kFlightBytes);
  EXPECT_EQ(parse_flight_recorder(bytes).error().code(), Errc::not_found);
  std::memcpy(bytes.data(), "whatever", 8);
  EXPECT_EQ(parse_flight_recorder(bytes).error().code(), Errc::malformed);
  bytes.resize(100);
  EXPECT_EQ(parse_flight_recorder(bytes).error().code(), Errc::malformed);
  EXPECT_EQ(FlightWriter::attach(0x7ffffff, 0, 1, 0).error().code(), Errc::system);
}

TEST(FlightRecorder, VerdictNamesWhoIsMissingWhere) {
  std::vector<FlightLog> logs;
  for (int rank : {0, 1, 2, 3}) {
    auto w = writer(rank);
    w->queued(0, kBarrier, 0, 0, 0, 0, kSecond);
    w->running(0, kSecond);
    w->ended(0, FlightState::done, {}, kSecond);
    if (rank != 1) {
      w->queued(1, kAllReduce, kF32, 0, 4096, 0, 2 * kSecond);
      w->running(1, 2 * kSecond);
    }
    logs.push_back(log_of(*w));
  }
  EXPECT_EQ(flight_verdict(logs, 14 * kSecond),
            "ranks 0, 2, 3 wait in all_reduce #1 of 4096 f32 for 12.0 s\n"
            "rank 1 is missing: its last collective is barrier #0, ended 13.0 s ago\n");
}

TEST(FlightRecorder, VerdictShowsDisagreement) {
  std::vector<FlightLog> logs;
  for (int rank : {0, 1}) {
    auto w = writer(rank);
    w->queued(0, rank == 0 ? kAllReduce : kBarrier, kF32, 0, 8, 0, kSecond);
    logs.push_back(log_of(*w));
  }
  EXPECT_THAT(flight_verdict(logs, 2 * kSecond),
              HasSubstr("ranks disagree: rank 1 is in barrier #0, rank 0 in all_reduce #0 of 8 f32"));
}

TEST(FlightRecorder, PackedLogsKeepAgesAndTheNewestEntries) {
  auto w = writer(1);
  for (std::uint64_t s = 0; s < 100; ++s) {
    w->queued(s, kAllReduce, kF32, 0, 8, 0, 10 * kSecond);
    w->running(s, 11 * kSecond);
    if (s < 99) w->ended(s, FlightState::done, {}, 12 * kSecond);
  }
  const std::vector<FlightLog> logs = {log_of(*w), log_of(*w)};
  const std::string all = pack_flight(logs, 1 << 20, 14 * kSecond);
  auto back = unpack_flight(all);
  ASSERT_TRUE(back) << back.error().message();
  ASSERT_EQ(back->size(), 2u);
  EXPECT_EQ((*back)[0].entries.size(), 100u);
  EXPECT_EQ((*back)[0].entries[5].ended_ns, -2 * kSecond);
  EXPECT_EQ((*back)[0].entries[99].ended_ns, 0);
  EXPECT_EQ(flight_verdict(std::span(*back).first(1), 0), "rank 1 waits in all_reduce #99 of 8 f32 for 3.0 s\n");
  const std::string few = pack_flight(logs, 2000, 14 * kSecond);
  EXPECT_LE(few.size(), 2000u);
  auto newest = unpack_flight(few);
  ASSERT_TRUE(newest);
  EXPECT_EQ((*newest)[1].entries.back().sequence(), 99u);
  for (std::size_t n = 0; n < few.size(); ++n) EXPECT_FALSE(unpack_flight(std::string_view(few).substr(0, n)));
}

TEST(FlightRecorder, NoVerdictWhenNobodyWaits) {
  auto w = writer(0);
  w->queued(0, kBarrier, 0, 0, 0, 0, 1);
  w->ended(0, FlightState::done, {}, 2);
  const std::vector<FlightLog> logs = {log_of(*w)};
  EXPECT_EQ(flight_verdict(logs, 3), "");
}

}  // namespace
}  // namespace ddprun
