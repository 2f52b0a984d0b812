#pragma once

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include "common/result.h"

namespace ddprun {

// Does work that may hang (a file server that is gone, a GPU) in a thread and waits for it at most `limit`. A thread
// that hangs is left behind: `work` must own all that it touches. Exceptions (no memory) become errors. Errors: those
// of `work`; timed_out: "<what> did not answer within 600 s".
template <typename T>
Result<T> within(std::chrono::milliseconds limit, std::string_view what, std::function<Result<T>()> work) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result<T>> result;
  };
  const auto shared = std::make_shared<Shared>();
  const auto run = [shared, work = std::move(work)]() -> void {
    std::optional<Result<T>> result;
    try {
      result.emplace(work());
    } catch (const std::bad_alloc&) {
      result.emplace(Error(Errc::system, "no memory left"));
    } catch (const std::exception& e) {
      result.emplace(Error(Errc::system, e.what()));
    }
    const std::lock_guard lock(shared->mutex);
    shared->result = std::move(result);
    shared->changed.notify_all();
  };
  std::thread thread;
  try {
    thread = std::thread(run);
  } catch (const std::system_error& e) {
    return Error(Errc::system, fmt::format("{}: cannot start a thread: {}", what, e.what()));
  }
  std::unique_lock lock(shared->mutex);
  const bool ended = shared->changed.wait_for(lock, limit, [&shared] { return shared->result.has_value(); });
  lock.unlock();
  if (ended) {
    thread.join();
    return *std::move(shared->result);
  }
  thread.detach();
  return Error(Errc::timed_out,
               fmt::format("{} did not answer within {} s: does its file system hang?", what, limit.count() / 1000));
}

}  // namespace ddprun
