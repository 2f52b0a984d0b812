#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/tcp.h"
#include "tests/support/comm_ranks.h"
#include "worker/comm/handshake.h"
#include "worker/comm/shm_bootstrap.h"
#include "worker/comm/tcp_ring.h"

// Ranks that die, stop, disagree or leave: the others end in bounded time with a message that names them.
namespace ddprun::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::Kind;
using testing::RankContext;
using testing::RankOutcome;
constexpr std::chrono::milliseconds kPatience{50'000};

class CommFault : public ::testing::TestWithParam<Kind> {
 protected:
  std::vector<RankOutcome> run(int size, const std::function<std::string(Communicator&)>& body,
                               std::chrono::milliseconds timeout = kPatience,
                               const testing::Meanwhile& meanwhile = {}) {
    return testing::run_ranks(
        size,
        [&](RankContext& context) -> std::string {
          auto communicator = testing::make_test_communicator(GetParam(), context, timeout);
          RANK_OK(communicator);
          RANK_OK(context.store->set("up/" + std::to_string(context.rank), "1"));
          std::string text = body(**communicator);
          RANK_OK(context.store->set("done/" + std::to_string(context.rank), "1"));
          return text;
        },
        std::chrono::seconds(60), meanwhile);
  }
};

// All-reduces until one fails; the message.
std::string reduce_until_error(Communicator& c, std::size_t count) {
  std::vector<float> data(count, 1.0f);
  while (true) {
    Result<void> ok = c.all_reduce(Block{data.data(), count, DType::f32}, Reduce::avg).wait();
    if (!ok) return std::string(to_string(ok.error().code())) + ": " + ok.error().message();
  }
}

TEST_P(CommFault, KilledRankIsNamed) {
  for (std::size_t count : {std::size_t{8}, std::size_t{300'000}}) {
    const auto outcomes = run(4, [count](Communicator& c) -> std::string {
      if (c.rank() == 2) {
        std::vector<float> data(count);
        for (int i = 0; i < 20; ++i) {
          RANK_OK(c.all_reduce(Block{data.data(), count, DType::f32}, Reduce::avg).wait());
        }
        ::raise(SIGKILL);
      }
      return reduce_until_error(c, count);
    });
    EXPECT_EQ(outcomes[2].signal, SIGKILL);
    for (int r : {0, 1, 3}) {
      EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].text,
                  AllOf(HasSubstr("peer closed"), HasSubstr("rank 2 died"), HasSubstr("all_reduce #20 of"),
                        HasSubstr("missing ranks: 2")));
    }
  }
}

TEST_P(CommFault, StoppedRankIsNamedAtTheDeadline) {
  const auto outcomes = run(
      3,
      [](Communicator& c) -> std::string {
        RANK_OK(c.barrier());
        return reduce_until_error(c, 1000);
      },
      std::chrono::milliseconds(1000),
      [](const std::vector<int>& pids, KeyValue& store) {
        const auto wait_for = [&store](const std::string& key) {
          (void)store.get(key, SteadyClock::now() + std::chrono::seconds(60));
        };
        for (const char* key : {"up/0", "up/1", "up/2"}) wait_for(key);
        ::kill(pids[1], SIGSTOP);
        // It ends by itself once it runs again: the others have told it.
        for (const char* key : {"done/0", "done/2"}) wait_for(key);
        ::kill(pids[1], SIGCONT);
      });
  for (int r : {0, 2}) {
    EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].text,
                AllOf(HasSubstr("timed out"), HasSubstr("missing ranks: 1 ("),
                      HasSubstr(GetParam() == Kind::tcp ? "does not answer" : "stopped by a signal")));
  }
  EXPECT_THAT(outcomes[1].text, HasSubstr("missing ranks: 1"));
}

// The first rank of another host is waited for by one rank of this one only; its neighbours must not blame that one.
TEST_P(CommFault, RankThatIsStoppedBeforeAnAllocationIsNamed) {
  const auto outcomes = run(
      4,
      [](Communicator& c) -> std::string {
        RANK_OK(c.barrier());
        if (c.rank() == 0) ::raise(SIGSTOP);
        // Its neighbour, who sees at once that it is stopped, is the last to reach the deadline.
        if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(800));
        auto memory = c.allocate(1000);
        return memory ? reduce_until_error(c, 8) : memory.error().message();
      },
      std::chrono::milliseconds(1000),
      [](const std::vector<int>& pids, KeyValue& store) {
        for (const char* key : {"done/1", "done/2", "done/3"}) {
          (void)store.get(key, SteadyClock::now() + std::chrono::seconds(40));
        }
        ::kill(pids[0], SIGCONT);
      });
  for (std::size_t r : {1, 2, 3}) EXPECT_THAT(outcomes[r].text, HasSubstr("missing ranks: 0"));
}

TEST_P(CommFault, DifferentOperationsAreNamedOnBothSides) {
  const auto outcomes = run(4, [](Communicator& c) -> std::string {
    std::vector<float> data(4096);
    std::vector<std::int64_t> other(10);
    RANK_OK(c.barrier());
    Result<void> ok = c.rank() == 3 ? c.broadcast(Block{other.data(), 10, DType::i64}, 0).wait()
                                    : c.all_reduce(Block{data.data(), 4096, DType::f32}, Reduce::sum).wait();
    return ok ? "no error" : ok.error().message();
  });
  for (const auto& o : outcomes) {
    EXPECT_THAT(o.text, AllOf(HasSubstr("all_reduce #1 of 4096 f32"), HasSubstr("broadcast #1 of 10 i64 from rank 0"),
                              HasSubstr("rank 3")));
  }
}

TEST_P(CommFault, DifferentCountsAndReductionsAreErrors) {
  const auto counts = run(2, [](Communicator& c) -> std::string {
    std::vector<float> data(100'001);
    Result<void> ok =
        c.all_reduce(Block{data.data(), c.rank() == 0 ? data.size() : 100'000, DType::f32}, Reduce::sum).wait();
    return ok ? "no error" : ok.error().message();
  });
  for (const auto& o : counts) EXPECT_THAT(o.text, AllOf(HasSubstr("of 100001 f32"), HasSubstr("of 100000 f32")));
  const auto reductions = run(2, [](Communicator& c) -> std::string {
    float v = 1;
    Result<void> ok = c.all_reduce(Block{&v, 1, DType::f32}, c.rank() == 0 ? Reduce::sum : Reduce::max).wait();
    return ok ? "no error" : ok.error().message();
  });
  for (const auto& o : reductions) EXPECT_THAT(o.text, HasSubstr("of 1 f32 (max)"));
}

TEST_P(CommFault, RankThatReturnedEarlyIsNamed) {
  const auto outcomes = run(3, [](Communicator& c) -> std::string {
    RANK_OK(c.barrier());
    if (c.rank() == 1) return "";
    return reduce_until_error(c, 10);
  });
  EXPECT_EQ(outcomes[1].text, "");
  for (int r : {0, 2}) {
    EXPECT_THAT(
        outcomes[static_cast<std::size_t>(r)].text,
        AllOf(HasSubstr("rank 1 returned early"), HasSubstr("after 1 collectives"), HasSubstr("all_reduce #1")));
  }
}

TEST_P(CommFault, ExceptionOnOneRankReachesTheOthers) {
  const auto outcomes = run(3, [](Communicator& c) -> std::string {
    std::vector<float> data(5000);
    if (c.rank() == 1) {
      Work work = c.all_reduce(Block{data.data(), 5000, DType::f32}, Reduce::avg);
      throw std::runtime_error("out of coffee");
    }
    return reduce_until_error(c, 5000);
  });
  EXPECT_EQ(outcomes[1].text, "exception: out of coffee");
  for (int r : {0, 2}) {
    EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].text,
                AllOf(HasSubstr("cancelled"), HasSubstr("rank 1"), HasSubstr("ended by an exception")));
  }
}

TEST_P(CommFault, AbortWakesEverybodyWithItsReason) {
  const auto outcomes = run(3, [](Communicator& c) -> std::string {
    RANK_OK(c.barrier());
    std::thread aborter;
    if (c.rank() == 2) {
      aborter = std::thread([&c] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        c.abort("the user said stop");
      });
    }
    // Rank 0 is late: the others wait for it when the abort comes, and it learns of it when it comes.
    if (c.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::string text = reduce_until_error(c, 100);
    if (aborter.joinable()) aborter.join();
    return text;
  });
  for (const auto& o : outcomes) EXPECT_THAT(o.text, HasSubstr("aborted: the user said stop"));
}

TEST_P(CommFault, ChildOfForkIsToldSo) {
  const auto outcomes = run(2, [](Communicator& c) -> std::string {
    RANK_OK(c.barrier());
    int ends[2];
    RANK_CHECK(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      float v = 1;
      Result<void> ok = c.all_reduce(Block{&v, 1, DType::f32}, Reduce::sum).wait();
      const std::string text = ok ? "no error" : ok.error().message();
      (void)!::write(ends[1], text.data(), text.size());
      ::_exit(0);
    }
    char buffer[1000];
    const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
    ::waitpid(child, nullptr, 0);
    RANK_OK(c.barrier());  // the parent's still works
    return std::string(buffer, static_cast<std::size_t>(n));
  });
  for (const auto& o : outcomes) EXPECT_THAT(o.text, AllOf(HasSubstr("all_reduce #1"), HasSubstr("after fork()")));
}

TEST_P(CommFault, WrongArgumentsOfOneRankAreToldToAll) {
  const auto outcomes = run(2, [](Communicator& c) -> std::string {
    std::vector<float> mine(4), all(8);
    Result<void> ok = c.all_gather(Block{mine.data(), 4, DType::f32},
                                   Block{all.data(), c.rank() == 0 ? std::size_t{7} : 8, DType::f32})
                          .wait();
    return ok ? "no error" : ok.error().message();
  });
  for (const auto& o : outcomes) {
    EXPECT_THAT(o.text, AllOf(HasSubstr("rank 0"), HasSubstr("has 7 f32, must have world_size x 4 f32")));
  }
}

TEST_P(CommFault, RebuiltInTheSameProcessesAfterAnAbort) {
  const Kind kind = GetParam();
  const auto outcomes = testing::run_ranks(3, [kind](RankContext& context) -> std::string {
    for (int round = 0; round < 4; ++round) {
      auto made = testing::make_test_communicator(kind, context, kPatience, "round" + std::to_string(round));
      RANK_OK(made);
      Communicator& c = **made;
      float value = 1;
      RANK_OK(c.all_reduce(Block{&value, 1, DType::f32}, Reduce::sum).wait());
      RANK_CHECK(value == 3);
      if (round % 2 == 0) {
        if (context.rank == 1) c.abort("next round");
        RANK_CHECK(!reduce_until_error(c, 10).empty());
      }
    }
    return "";
  });
  EXPECT_EQ(testing::problems(outcomes), "");
}

// Random collectives with a kill or a stop somewhere in the middle. DDPRUN_SOAK=10000 for the long run: one victim for
// each 500 collectives at least, until so many have ended.
TEST_P(CommFault, RandomKillsAndStopsAmongRandomCollectives) {
  const char* wish = std::getenv("DDPRUN_SOAK");
  const std::uint64_t wanted = wish != nullptr ? std::strtoull(wish, nullptr, 10) : 0;
  const int rounds = wish != nullptr ? std::max(static_cast<int>(wanted / 500), 1) : 6;
  std::mt19937 dice(static_cast<unsigned>(GetParam()) + 11);
  std::uint64_t ended = 0;  // collectives, over all rounds
  int kills = 0, stops = 0;
  for (int round = 0; round < rounds || ended < wanted; ++round) {
    ASSERT_LT(round, rounds * 100) << "only " << ended << " collectives ended";
    const int victim = static_cast<int>(dice() % 4);
    const int signal = dice() % 3 == 0 ? SIGSTOP : SIGKILL;
    const auto delay = std::chrono::microseconds(dice() % 60'000);
    const unsigned seed = dice();
    std::vector<int> all;
    const auto outcomes = run(
        4,
        [seed](Communicator& c) -> std::string {
          std::mt19937 same(seed);  // the same choices on every rank
          auto memory = c.allocate(1 << 20);
          if (!memory) return memory.error().message();
          std::vector<float> foreign(1 << 18);
          for (std::uint64_t i = 0;; ++i) {
            float* data = same() % 2 == 0 ? reinterpret_cast<float*>(*memory) : foreign.data();
            const std::size_t count = same() % 3 == 0 ? same() % 60'000 + 4 : same() % 500 + 4;
            Result<void> ok;
            switch (same() % 5) {
              case 0:
                ok = c.broadcast(Block{data, count, DType::f32}, static_cast<int>(same() % 4)).wait();
                break;
              case 1:
                ok = c.all_gather(Block{foreign.data(), count, DType::f32}, Block{data, count * 4, DType::f32}).wait();
                break;
              case 2:
                ok = c.reduce_scatter(Block{data, count * 4, DType::f32}, Block{foreign.data(), count, DType::f32},
                                      Reduce::max)
                         .wait();
                break;
              case 3:
                ok = c.barrier();
                break;
              default:
                ok = c.all_reduce(Block{data, count, DType::f32}, Reduce::avg).wait();
            }
            if (!ok) return fmt::format("{} ended, then: {}", i, ok.error().message());
          }
        },
        std::chrono::milliseconds(1200),
        [&](const std::vector<int>& pids, KeyValue& store) {
          for (int r = 0; r < 4; ++r) {
            (void)store.get("up/" + std::to_string(r), SteadyClock::now() + std::chrono::seconds(60));
          }
          std::this_thread::sleep_for(delay);  // the random moment
          ::kill(pids[static_cast<std::size_t>(victim)], signal);
          if (signal == SIGSTOP) {
            std::thread([pid = pids[static_cast<std::size_t>(victim)]] {
              std::this_thread::sleep_for(std::chrono::seconds(2));
              ::kill(pid, SIGKILL);
            }).detach();
          }
        });
    const std::string name = std::to_string(victim);
    ++(signal == SIGSTOP ? stops : kills);
    std::uint64_t most = 0;
    for (int r = 0; r < 4; ++r) {
      const auto& o = outcomes[static_cast<std::size_t>(r)];
      EXPECT_FALSE(o.overran);
      if (r == victim) continue;
      most = std::max<std::uint64_t>(most, std::strtoull(o.text.c_str(), nullptr, 10));
      EXPECT_THAT(o.text, AnyOf(HasSubstr("rank " + name + " died"), HasSubstr("missing ranks: " + name)))
          << "round " << round << " victim " << victim << " signal " << signal << " delay " << delay.count();
    }
    ended += most;
  }
  fmt::print("{}: {} kills and {} stops among {} collectives of 4 ranks\n", testing::name_of(GetParam()), kills, stops,
             ended);
}

// Connecting: who does not come is named.
TEST(CommConnect, RankThatNeverComesIsNamed) {
  const auto shm = testing::run_ranks(3, [](RankContext& context) -> std::string {
    if (context.rank == 2) return "";
    ShmPlace place;
    place.key = "k";
    place.rank = place.local_rank = context.rank;
    place.local_size = 3;
    auto made = connect_shm(*context.store, place, SteadyClock::now() + std::chrono::seconds(2));
    return made ? "no error" : made.error().message();
  });
  EXPECT_THAT(shm[0].text, HasSubstr("2 of 3 ranks of this host came; missing: rank 2"));
  EXPECT_THAT(shm[1].text, HasSubstr("shared memory: rank 1"));
  const auto tcp = testing::run_ranks(3, [](RankContext& context) -> std::string {
    if (context.rank == 2) return "";
    RingPlace place;
    place.key = "k";
    place.index = context.rank;
    place.ranks = {0, 1, 2};
    place.address = "127.0.0.1";
    auto made = TcpRing::connect(*context.store, place, SteadyClock::now() + std::chrono::seconds(2));
    return made ? "no error" : made.error().message();
  });
  EXPECT_THAT(tcp[0].text, HasSubstr("missing ranks: 2"));
  EXPECT_THAT(tcp[1].text, HasSubstr("rank 1 waits for the address of rank 2"));
}

TEST(CommConnect, WrongNumberOfLocalRanksIsAnError) {
  const auto outcomes = testing::run_ranks(2, [](RankContext& context) -> std::string {
    ShmPlace place;
    place.key = "k";
    place.rank = place.local_rank = context.rank;
    place.local_size = context.rank == 0 ? 2 : 3;
    auto made = connect_shm(*context.store, place, SteadyClock::now() + std::chrono::seconds(2));
    return made ? "no error" : made.error().message();
  });
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 1 says it is local rank 1 of 3, but rank 0 is local rank 0 of 2"));
}

// Local rank 0 hangs behind its socket, and others have filled its queue: connect() would wait without a deadline.
TEST(CommConnect, SocketThatNobodyAcceptsFromIsNamedAtTheDeadline) {
  const auto outcomes = testing::run_ranks(1, [](RankContext& context) -> std::string {
    UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    auto* where = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address;
    RANK_CHECK(::bind(listener.get(), where, sizeof(sa_family_t)) == 0 && ::listen(listener.get(), 0) == 0);
    RANK_CHECK(::getsockname(listener.get(), where, &length) == 0);
    std::vector<UniqueFd> others;
    do {
      others.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    } while (::connect(others.back().get(), where, length) == 0);
    RANK_CHECK(errno == EAGAIN);
    const std::string name(address.sun_path, length - offsetof(sockaddr_un, sun_path));
    RANK_OK(context.store->set("k", to_hex(name) + " " + std::string(32, 'a')));
    ShmPlace place;
    place.key = "k";
    place.rank = place.local_rank = 1;
    place.local_size = 2;
    auto made = connect_shm(*context.store, place, SteadyClock::now() + std::chrono::milliseconds(300));
    return made ? "no error" : made.error().message();
  });
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 1 cannot reach local rank 0 of its host: it accepts no connections"));
}

TEST(CommConnect, OldAddressInTheStoreIsPassedOver) {
  const auto outcomes = testing::run_ranks(2, [](RankContext& context) -> std::string {
    for (const Kind kind : {Kind::shm, Kind::tcp}) {
      const std::string key = kind == Kind::shm ? "/ddprun/shm/test" : "/ddprun/tcp/test/0";
      if (context.rank == 1) {
        // What a crashed attempt leaves behind: nobody listens there any more.
        const std::string token(32, 'a');
        RANK_OK(context.store->set(key, (kind == Kind::shm ? "00616263 " : "127.0.0.1:1 ") + token));
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      auto made = testing::make_test_communicator(kind, context, kPatience);
      RANK_OK(made);
      RANK_OK((*made)->barrier());
    }
    return "";
  });
  EXPECT_EQ(testing::problems(outcomes), "");
}

// Stands between rank 0 and rank 1: takes rank 0's connections and hands on what it says, data (every connection but
// the first, which is for control) in pieces of at most `piece` bytes with a `pause` between them.
struct Between {
  std::size_t piece;
  std::chrono::milliseconds pause;
  int listener = -1;
  std::atomic<bool> stop{false};

  struct Way {
    UniqueFd from, to;
    std::size_t piece;
  };

  static TimePoint soon() { return SteadyClock::now() + std::chrono::seconds(20); }

  std::optional<Way> take(const Endpoint& to, bool is_control) const {
    UniqueFd from(::accept(listener, nullptr, nullptr));
    auto onward = tcp_connect_once(to, soon());
    char hello[52];  // the greeting, see tcp_ring.h: at full speed
    if (!from || !onward || !read_exact(from.get(), hello, sizeof hello, soon())) return std::nullopt;
    if (!write_all(onward->get(), std::string_view(hello, sizeof hello), soon())) return std::nullopt;
    return Way{std::move(from), std::move(onward).value(), is_control ? 4096 : piece};
  }

  void serve(const Endpoint& to) const {
    std::vector<Way> ways;
    const auto hand_on = [](int from, int target, std::size_t most) {
      char buffer[4096];
      const ssize_t n = ::recv(from, buffer, std::min(most, sizeof buffer), MSG_DONTWAIT);
      if (n > 0) (void)write_all(target, std::string_view(buffer, static_cast<std::size_t>(n)), soon());
    };
    while (!stop) {
      std::vector<pollfd> polls = {{listener, POLLIN, 0}};
      for (const Way& w : ways) {
        polls.push_back({w.from.get(), POLLIN, 0});
        polls.push_back({w.to.get(), POLLIN, 0});
      }
      ::poll(polls.data(), polls.size(), 10);
      for (std::size_t i = 0; i < ways.size(); ++i) {
        hand_on(ways[i].from.get(), ways[i].to.get(), ways[i].piece);
        hand_on(ways[i].to.get(), ways[i].from.get(), 4096);
      }
      std::this_thread::sleep_for(pause);  // the speed of the slow way
      if (polls[0].revents == 0) continue;
      if (auto way = take(to, ways.empty())) ways.push_back(std::move(*way));
    }
  }
};

// A store that tells rank 0 the address of the one in between instead of rank 1's.
class Detour final : public KeyValue {
 public:
  Detour(KeyValue& real, std::uint16_t port) : real_(real), port_(port) {}
  Result<void> set(std::string_view key, std::string_view value) override { return real_.set(key, value); }
  Result<std::string> get(std::string_view key, TimePoint deadline) override {
    auto value = real_.get(key, deadline);
    if (!value) return value;
    return "127.0.0.1:" + std::to_string(port_) + value->substr(value->find(' '));
  }
  Result<void> erase(std::string_view) override { return {}; }

 private:
  KeyValue& real_;
  std::uint16_t port_;
};

std::vector<RankOutcome> run_with(Between& between, std::chrono::milliseconds timeout,
                                  const std::function<std::string(Communicator&)>& body) {
  auto listener = tcp_listen({});
  CHECK(listener.has_value(), "cannot listen");
  between.listener = listener->fd.get();
  std::thread thread;
  auto outcomes = testing::run_ranks(
      2,
      [&, port = listener->port](RankContext& context) -> std::string {
        Detour detour(*context.store, port);
        if (context.rank == 0) context.store = &detour;
        auto made = testing::make_test_communicator(Kind::tcp, context, timeout);
        RANK_OK(made);
        return body(**made);
      },
      std::chrono::seconds(60),
      [&](const std::vector<int>&, KeyValue& store) {
        auto address = store.get("/ddprun/tcp/test/1", SteadyClock::now() + std::chrono::seconds(60));
        ASSERT_TRUE(address);
        auto to = Endpoint::parse(address->substr(0, address->find(' ')), 0);
        ASSERT_TRUE(to);
        thread = std::thread([&between, endpoint = *to] { between.serve(endpoint); });
      });
  between.stop = true;
  if (thread.joinable()) thread.join();
  return outcomes;
}

// Bytes keep coming, but so slowly that the collective would take hours: the deadline is of the whole collective.
TEST(CommTcp, PeerThatTricklesIsNamedAtTheDeadline) {
  Between between{1, std::chrono::milliseconds(10)};
  const TimePoint began = SteadyClock::now();
  const auto outcomes = run_with(between, std::chrono::milliseconds(1000), [](Communicator& c) -> std::string {
    std::vector<float> data(4 << 20);
    Result<void> ok = c.all_reduce(Block{data.data(), data.size(), DType::f32}, Reduce::sum).wait();
    return ok ? "no error" : ok.error().message();
  });
  for (const auto& o : outcomes) {
    EXPECT_THAT(o.text, AllOf(HasSubstr("timed out in all_reduce #0"), HasSubstr("missing ranks: 0"),
                              HasSubstr("of 16777216 bytes came"), HasSubstr("the network is too slow")));
  }
  EXPECT_LT(SteadyClock::now() - began, std::chrono::seconds(40));
}

// Networks cut where they like: also inside an element.
TEST(CommTcp, PiecesThatCutElementsAreAddedRight) {
  Between between{1021, std::chrono::milliseconds(0)};
  const auto outcomes = run_with(between, kPatience, [](Communicator& c) -> std::string {
    std::vector<double> data(40'001);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i) * (c.rank() + 1);
    RANK_OK(c.all_reduce(Block{data.data(), data.size(), DType::f64}, Reduce::sum).wait());
    for (std::size_t i = 0; i < data.size(); ++i) RANK_CHECK(data[i] == static_cast<double>(i) * 3);
    return "";
  });
  EXPECT_EQ(testing::problems(outcomes), "");
}

std::string name_of_case(const ::testing::TestParamInfo<Kind>& info) { return testing::name_of(info.param); }

INSTANTIATE_TEST_SUITE_P(Cpu, CommFault, ::testing::Values(Kind::shm, Kind::shm_threads, Kind::tcp, Kind::two_hosts),
                         name_of_case);

}  // namespace
}  // namespace ddprun::comm
