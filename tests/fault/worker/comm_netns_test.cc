#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/comm_ranks.h"

// Communicators between hosts that have networks of their own (network namespaces), with a cable that can be pulled.
namespace ddprun::comm {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::Kind;
using testing::RankContext;

class CommHosts : public ::testing::TestWithParam<Kind> {
 protected:
  static constexpr int kHosts = 2;

  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: network namespaces stand for hosts";
    if (std::system("command -v ip >/dev/null 2>&1") != 0) GTEST_SKIP() << "needs iproute2 (the program ip)";
    if (std::system("ip netns add ddpcprobe >/dev/null 2>&1 && ip netns del ddpcprobe") != 0) {
      GTEST_SKIP() << "network namespaces cannot be made here";
    }
    prefix_ = "ddpc" + std::to_string(::getpid()) + "h";
    up_ = true;
    ASSERT_EQ(script("up", kHosts), 0);
  }
  void TearDown() override {
    if (up_) {
      EXPECT_EQ(script("down", kHosts), 0);
    }
  }

  int script(const std::string& verb, int n) const {
    const std::string command = std::string("bash ") + DDPRUN_SOURCE_DIR + "/tests/support/netns_hosts.sh " + verb +
                                " " + prefix_ + " " + std::to_string(n);
    return std::system(command.c_str());
  }

  int ranks() const { return GetParam() == Kind::tcp ? 2 : 4; }
  int host_of(int rank) const { return GetParam() == Kind::tcp ? rank : rank / 2; }

  std::vector<testing::RankOutcome> run(const std::function<std::string(Communicator&)>& body,
                                        std::chrono::milliseconds timeout, const testing::Meanwhile& meanwhile = {}) {
    return testing::run_ranks(
        ranks(),
        [&](RankContext& context) -> std::string {
          const int host = host_of(context.rank) + 1;
          const int fd = ::open(("/run/netns/" + prefix_ + std::to_string(host)).c_str(), O_RDONLY | O_CLOEXEC);
          RANK_CHECK(fd >= 0);
          RANK_CHECK(::setns(fd, CLONE_NEWNET) == 0);
          context.address = "10.77.0." + std::to_string(host);
          auto made = testing::make_test_communicator(GetParam(), context, timeout);
          RANK_OK(made);
          RANK_OK(context.store->set("up/" + std::to_string(context.rank), "1"));
          return body(**made);
        },
        std::chrono::seconds(60), meanwhile);
  }

  void await_all(KeyValue& store) const {
    for (int r = 0; r < ranks(); ++r) {
      (void)store.get("up/" + std::to_string(r), SteadyClock::now() + std::chrono::seconds(60));
    }
  }

  std::string prefix_;
  bool up_ = false;
};

std::string reduce_and_check(Communicator& c, std::size_t count) {
  std::vector<float> data(count, static_cast<float>(c.rank() + 1));
  RANK_OK(c.all_reduce(Block{data.data(), count, DType::f32}, Reduce::sum).wait());
  const float expected = static_cast<float>(c.world_size() * (c.world_size() + 1) / 2);
  for (float v : data) RANK_CHECK(v == expected);
  return "";
}

TEST_P(CommHosts, CollectivesCrossTheNetwork) {
  const auto outcomes = run(
      [](Communicator& c) -> std::string {
        for (std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{3'000'000}}) {
          const std::string wrong = reduce_and_check(c, count);
          if (!wrong.empty()) return wrong;
        }
        return "";
      },
      std::chrono::seconds(50));
  EXPECT_EQ(testing::problems(outcomes), "");
}

TEST_P(CommHosts, CutCableIsToldOnBothSidesAtTheDeadline) {
  const auto outcomes = run(
      [](Communicator& c) -> std::string {
        std::vector<float> data(50'000);
        while (true) {
          Result<void> ok = c.all_reduce(Block{data.data(), data.size(), DType::f32}, Reduce::sum).wait();
          if (!ok) return ok.error().message();
        }
      },
      std::chrono::milliseconds(1500),
      [this](const std::vector<int>&, KeyValue& store) {
        await_all(store);
        EXPECT_EQ(script("cut", 2), 0);
      });
  for (int r = 0; r < ranks(); ++r) {
    const int first = host_of(r) == 0 ? ranks() / 2 : 0;  // of the other host
    EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].text,
                AnyOf(HasSubstr("missing ranks: " + std::to_string(first)),
                      HasSubstr("missing ranks: " + std::to_string(first + ranks() / 2 - 1))))
        << "rank " << r;
  }
}

TEST_P(CommHosts, CableThatIsBackBeforeTheDeadlineIsForgiven) {
  const auto outcomes = run(
      [](Communicator& c) -> std::string {
        const TimePoint end = SteadyClock::now() + std::chrono::milliseconds(1500);
        std::int32_t more = 1;
        while (more != 0) {
          const std::string wrong = reduce_and_check(c, 20'000);
          if (!wrong.empty()) return wrong;
          more = SteadyClock::now() < end ? 1 : 0;
          RANK_OK(c.all_reduce(Block{&more, 1, DType::i32}, Reduce::min).wait());
        }
        return "";
      },
      std::chrono::seconds(40),
      [this](const std::vector<int>&, KeyValue& store) {
        await_all(store);
        EXPECT_EQ(script("cut", 2), 0);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the length of the disturbance
        EXPECT_EQ(script("join", 2), 0);
      });
  EXPECT_EQ(testing::problems(outcomes), "");
}

std::string name_of_case(const ::testing::TestParamInfo<Kind>& info) { return testing::name_of(info.param); }
INSTANTIATE_TEST_SUITE_P(Hosts, CommHosts, ::testing::Values(Kind::tcp, Kind::two_hosts), name_of_case);

}  // namespace
}  // namespace ddprun::comm
