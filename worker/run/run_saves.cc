#include "worker/run/run_saves.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "worker/run/agree.h"

namespace ddprun::trainer {

Result<void> RunSaves::gather_index_bytes() {
  auto sizes = numbers_of_all(*s_.communicator, outputs_.index_bytes());
  if (!sizes) return std::move(sizes).error();
  // Ranks that were there before this world was made smaller keep what they wrote.
  auto& known = s_.state.index_bytes;
  known.resize(std::max(known.size(), sizes->size()));
  std::copy(sizes->begin(), sizes->end(), known.begin());
  return {};
}

Result<void> RunSaves::start() {
  if (!s_.config.output.indices.empty()) {
    auto gathered = gather_index_bytes();
    if (!gathered) return gathered;
  }
  started_at_ = s_.state.step;
  if (s_.writer == nullptr) return {};
  // The save before this one: how it went says nothing about this one.
  auto before = s_.writer->wait();
  if (!before && s_.writer->hangs()) return before;
  auto started = start_save(s_);
  if (!before) log_error("checkpoint not saved: {}", before.error().message());
  return started;
}

Result<void> RunSaves::last() {
  auto started = start();
  return started ? finish() : started;
}

Result<void> RunSaves::finish() {
  if (s_.writer == nullptr) return {};
  auto outcome = s_.writer->wait();
  if (!outcome) return std::move(outcome).error().with_context("checkpoint not saved");
  return {};
}

}  // namespace ddprun::trainer
