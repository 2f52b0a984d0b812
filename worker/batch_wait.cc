#include "worker/batch_wait.h"

#include <fmt/format.h>

#include <algorithm>

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

Result<BatchWaitResult> wait_for_batch(comm::Communicator& communicator, data::Loader& loader, bool meet,
                                       std::chrono::milliseconds slice, SlowRead& slow,
                                       const std::function<bool()>& stop_requested) {
  for (;;) {
    auto got = loader.wait(slice);
    const bool ready = got && *got;
    if (ready) slow.over();
    if (ready && !meet) return BatchWaitResult{};
    double vote[3] = {ready ? 0.0 : 1.0, got ? 0.0 : 1.0, stop_requested() ? 1.0 : 0.0};
    auto voted = ddp::sync_metrics(communicator, vote, comm::Reduce::sum);
    if (!voted && got) return std::move(voted).error();
    if (!got || vote[1] > 0) {
      BatchWaitResult failed{BatchOutcome::failed, {}};
      if (!got) failed.mine = std::move(got).error();
      return failed;
    }
    if (vote[0] == 0) return BatchWaitResult{};
    if (vote[2] > 0) return BatchWaitResult{BatchOutcome::stop, {}};
    if (!ready) slow.waits(loader);
  }
}

}  // namespace ddprun::trainer
