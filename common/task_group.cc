#include "common/task_group.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <iterator>
#include <utility>

namespace asio = boost::asio;

namespace ddprun {

struct TaskGroup::State {
  explicit State(const asio::any_io_executor& ex) : executor(ex), all_done(ex) {
    all_done.expires_at(asio::steady_timer::time_point::max());
  }
  asio::any_io_executor executor;
  asio::steady_timer all_done;
  std::list<asio::cancellation_signal> children;
  std::exception_ptr failure;
};

static bool is_normal_end(const std::exception_ptr& failure) {
  if (!failure) return true;
  try {
    std::rethrow_exception(failure);
  } catch (const boost::system::system_error& e) {
    return e.code() == asio::error::operation_aborted;
  } catch (...) {
    return false;
  }
}

TaskGroup::TaskGroup(const asio::any_io_executor& executor) : state_(std::make_shared<State>(executor)) {}

TaskGroup::~TaskGroup() = default;

void TaskGroup::spawn(asio::awaitable<void> task) {
  state_->children.emplace_back();
  const auto child = std::prev(state_->children.end());
  asio::co_spawn(state_->executor, std::move(task),
                 asio::bind_cancellation_slot(child->slot(), [state = state_, child](std::exception_ptr failure) {
                   if (!is_normal_end(failure) && !state->failure) state->failure = failure;
                   // The slot belongs to the list entry and is in use until this handler returns.
                   asio::post(state->executor, [state, child] {
                     state->children.erase(child);
                     if (state->children.empty()) state->all_done.cancel();
                   });
                 }));
}

void TaskGroup::stop() {
  for (auto child = state_->children.begin(); child != state_->children.end();) {
    const auto next = std::next(child);
    child->emit(asio::cancellation_type::all);
    child = next;
  }
}

bool TaskGroup::empty() const { return state_->children.empty(); }

asio::awaitable<void> TaskGroup::join() {
  const auto state = state_;
  while (!state->children.empty()) {
    constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
    co_await state->all_done.async_wait(as_tuple);
  }
  if (state->failure) std::rethrow_exception(std::exchange(state->failure, nullptr));
}

}  // namespace ddprun
