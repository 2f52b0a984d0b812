// Deadline, TaskGroup and AsyncLookup, on a real io_context.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <thread>

#include "common/async_lookup.h"
#include "common/deadline.h"
#include "common/task_group.h"
#include "tests/support/proc_deny.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;
using std::chrono::hours;
using std::chrono::milliseconds;

TEST(Deadline, FiresWhenTheLimitPasses) {
  asio::io_context io(1);
  int fired = 0;
  Deadline deadline(io.get_executor(), milliseconds(1), [&fired] { ++fired; });
  EXPECT_FALSE(deadline.expired());
  io.run_one();
  EXPECT_EQ(fired, 1);
  EXPECT_TRUE(deadline.expired());
}

TEST(Deadline, AnOperationThatBeginsTooLateIsEndedToo) {
  asio::io_context io(1);
  asio::steady_timer operation(io);
  bool ended = false;
  auto deadline = std::make_unique<Deadline>(io.get_executor(), milliseconds(0), [&operation] { operation.cancel(); });
  io.run_one();
  EXPECT_TRUE(deadline->expired());  // and found nothing to cancel
  operation.expires_after(hours(1));
  operation.async_wait([&](const boost::system::error_code& error) {
    ended = error == asio::error::operation_aborted;
    deadline.reset();
  });
  io.run_for(std::chrono::seconds(60));
  EXPECT_TRUE(ended);
}

TEST(Deadline, DoesNothingOnceItIsDestroyed) {
  asio::io_context io(1);
  bool fired = false;
  {
    const Deadline deadline(io.get_executor(), milliseconds(0), [&fired] { fired = true; });
  }
  io.run();
  EXPECT_FALSE(fired);
}

asio::awaitable<void> sleep_for(milliseconds span) {
  asio::steady_timer timer(co_await asio::this_coro::executor, span);
  co_await timer.async_wait(asio::use_awaitable);
}

asio::awaitable<void> count_and_end(int& counter) {
  ++counter;
  co_return;
}

asio::awaitable<void> fail() {
  co_await sleep_for(milliseconds(1));
  throw std::runtime_error("child failed");
}

asio::awaitable<void> join_and_flag(TaskGroup& group, bool& joined) {
  co_await group.join();
  joined = true;
}

// Runs a coroutine to its end; gives the exception's text, or "".
std::string run(asio::io_context& io, asio::awaitable<void> task) {
  std::string failure = "did not end";
  asio::co_spawn(io, std::move(task), [&failure](std::exception_ptr error) {
    failure.clear();
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      failure = e.what();
    }
  });
  io.run();
  return failure;
}

TEST(TaskGroup, JoinComesBackAfterTheLastChild) {
  asio::io_context io(1);
  TaskGroup group(io.get_executor());
  int counter = 0;
  bool joined = false;
  for (int i = 0; i < 3; ++i) group.spawn(count_and_end(counter));
  group.spawn(sleep_for(milliseconds(2)));
  EXPECT_FALSE(group.empty());
  EXPECT_EQ(run(io, join_and_flag(group, joined)), "");
  EXPECT_TRUE(joined);
  EXPECT_EQ(counter, 3);
  EXPECT_TRUE(group.empty());
}

asio::awaitable<void> stop_and_join(TaskGroup& group) {
  co_await sleep_for(milliseconds(1));
  group.stop();
  co_await group.join();
}

TEST(TaskGroup, StopEndsChildrenThatWaitAndThatIsNoFailure) {
  asio::io_context io(1);
  TaskGroup group(io.get_executor());
  for (int i = 0; i < 10; ++i) group.spawn(sleep_for(hours(1)));
  EXPECT_EQ(run(io, stop_and_join(group)), "");
  EXPECT_TRUE(group.empty());
}

TEST(TaskGroup, JoinRethrowsTheFirstFailure) {
  asio::io_context io(1);
  TaskGroup group(io.get_executor());
  bool joined = false;
  group.spawn(fail());
  group.spawn(sleep_for(milliseconds(3)));
  EXPECT_EQ(run(io, join_and_flag(group, joined)), "child failed");
  EXPECT_FALSE(joined);
  EXPECT_TRUE(group.empty());
}

TEST(TaskGroup, JoinOfAnEmptyGroupComesBackAtOnce) {
  asio::io_context io(1);
  TaskGroup group(io.get_executor());
  bool joined = false;
  EXPECT_EQ(run(io, join_and_flag(group, joined)), "");
  EXPECT_TRUE(joined);
}

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

asio::awaitable<void> ask(AsyncLookup& lookup, Error& error) {
  const auto found = co_await lookup.ask("a-name.invalid", std::chrono::seconds(20));
  if (!found) error = found.error();
}

// In a process of its own. Exits with 0 if all is as it should be.
[[noreturn]] void look_up_without_room_in_epoll() {
  asio::io_context io(1);
  asio::steady_timer timer(io);  // with it Asio has its epoll set
  AsyncLookup lookup(io);
  const std::ptrdiff_t before = open_descriptors();
  if (!launcher::testing::deny_calls({SYS_epoll_ctl}, ENOSPC)) std::_Exit(2);
  const TimePoint limit = SteadyClock::now() + std::chrono::seconds(30);
  Error error(Errc::system, "none");
  // A resolver that is quicker than we are has answered before we watch.
  while (error.message().find("No space left") == std::string::npos) {
    if (SteadyClock::now() > limit) std::_Exit(3);
    io.restart();
    if (!run(io, ask(lookup, error)).empty()) std::_Exit(4);
  }
  while (open_descriptors() > before) {  // the resolver's threads have some until they have answered
    if (SteadyClock::now() > limit) std::_Exit(5);
    std::this_thread::sleep_for(milliseconds(5));
  }
  std::_Exit(0);
}

TEST(AsyncLookup, AFullEpollSetIsAnErrorAndNothingLeaks) {
  EXPECT_EXIT(look_up_without_room_in_epoll(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ddprun
