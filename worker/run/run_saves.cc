#include "worker/run/run_saves.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/log.h"
#include "worker/ranks/agree.h"

namespace ddprun::trainer {

Result<void> RunSaves::gather_index_bytes() {
  auto sizes = numbers_of_all(ranks_.communicator(), outputs_.index_bytes());
  if (!sizes) return std::move(sizes).error();
  // Ranks that were there before this world was made smaller keep what they wrote.
  auto& known = state_.index_bytes;
  known.resize(std::max(known.size(), sizes->size()));
  std::copy(sizes->begin(), sizes->end(), known.begin());
  return {};
}

// Copies parameters, buffers and optimizer state, and starts the save. Errors: the device's, whose memory cannot be
// trusted then, and timed_out when the save before hangs; nothing is saved.
Result<void> RunSaves::copy_and_submit() {
  auto begun = writer_->begin();
  if (!begun) return std::move(begun).error();
  const std::vector<std::byte*>& places = **begun;
  std::size_t at = 0;
  for (const engine::Parameter& p : model_.store->parameters()) model_.store->read(p.id, places[at++]);
  for (const optim::StateTensor& t : model_.optimizer->state()) model_.optimizer->read(t, places[at++]);
  auto good = model_.kernels->status();
  if (good) writer_->submit(state_);
  return good;
}

Result<void> RunSaves::start() {
  if (with_indices_) {
    auto gathered = gather_index_bytes();
    if (!gathered) return gathered;
  }
  started_at_ = state_.step;
  if (writer_ == nullptr) return {};
  // The save before this one: how it went says nothing about this one.
  auto before = writer_->wait();
  if (!before && writer_->hangs()) return before;
  auto started = copy_and_submit();
  if (!before) log_error("checkpoint not saved: {}", before.error().message());
  return started;
}

Result<void> RunSaves::last() {
  auto started = start();
  return started ? finish() : started;
}

Result<void> RunSaves::finish() {
  if (writer_ == nullptr) return {};
  auto outcome = writer_->wait();
  if (!outcome) return std::move(outcome).error().with_context("checkpoint not saved");
  return {};
}

}  // namespace ddprun::trainer
