#include "worker/ranks/batch_wait.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "worker/ddp/sync_metrics.h"

namespace ddprun::trainer {

void SlowRead::waits(const data::Loader& loader) {
  const TimePoint now = SteadyClock::now();
  if (!waiting_) {
    waiting_ = true;
    since_ = now;
    return;
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - since_);
  if (waited < due_) return;
  log_warning("rank {} has waited {:.1f} s for data, and the job with it; in work: {}", rank_,
              static_cast<double>(waited.count()) / 1000, loader.in_work());
  said_ = true;
  due_ = 2 * waited;
}

void SlowRead::over() {
  if (said_) {
    log_info("rank {} has its data after {:.1f} s", rank_,
             std::chrono::duration<double>(SteadyClock::now() - since_).count());
  }
  waiting_ = said_ = false;
  due_ = first_;
}

std::chrono::milliseconds wait_slice(std::chrono::milliseconds collective_timeout) {
  return std::min(std::chrono::milliseconds(2000), collective_timeout / 4);
}

BatchWait::BatchWait(comm::Communicator& communicator, data::Loader& loader,
                     std::chrono::milliseconds collective_timeout, SlowRead& slow, std::function<bool()> stop_requested)
    : communicator_(communicator),
      loader_(loader),
      slice_(wait_slice(collective_timeout)),
      between_votes_(std::min(std::chrono::milliseconds(5000), collective_timeout / 4)),
      slow_(slow),
      stop_requested_(std::move(stop_requested)),
      voted_at_(SteadyClock::now()) {}

void BatchWait::begin_step() { voted_at_ = SteadyClock::now(); }

Result<BatchWait::Vote> BatchWait::vote(const Vote& mine) {
  double counts[4] = {mine.waiting ? 1.0 : 0.0, mine.no_data ? 1.0 : 0.0, mine.failed ? 1.0 : 0.0,
                      mine.stop ? 1.0 : 0.0};
  auto voted = ddp::sync_metrics(communicator_, counts, comm::Reduce::sum);
  if (!voted) return std::move(voted).error();
  voted_at_ = SteadyClock::now();
  return Vote{counts[0] > 0, counts[1] > 0, counts[2] > 0, counts[3] > 0};
}

Result<BatchWaitResult> BatchWait::wait(Meet meet) {
  for (;;) {
    auto got = loader_.wait(slice_);
    const bool ready = got && *got;
    if (ready) slow_.over();
    if (ready && meet == Meet::not_needed) return BatchWaitResult{};
    const bool stop = stop_requested_();
    if (got && meet == Meet::later && SteadyClock::now() < voted_at_ + between_votes_) {
      if (ready) return BatchWaitResult{};
      if (!stop) {
        slow_.waits(loader_);
        continue;
      }
    }
    auto all = vote(Vote{!ready || meet == Meet::later, !ready, !got, stop});
    if (!all && got) return std::move(all).error();
    if (!got || all->failed) {
      BatchWaitResult failed{BatchOutcome::failed, {}};
      if (!got) failed.mine = std::move(got).error();
      return failed;
    }
    if (!all->waiting) return BatchWaitResult{};
    if (all->no_data && all->stop) return BatchWaitResult{BatchOutcome::stop, {}};
    if (ready && meet == Meet::later) return BatchWaitResult{};
    if (!ready) slow_.waits(loader_);
  }
}

Result<void> BatchWait::give_up() {
  auto all = vote(Vote{true, false, true, false});
  if (!all) return std::move(all).error();
  return {};
}

}  // namespace ddprun::trainer
