#include "worker/run_saves.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"

namespace ddprun::trainer {

Result<void> RunSaves::gather_index_bytes() {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(s_.world_size()));
  std::int64_t mine = outputs_.index_bytes();
  auto gathered = s_.communicator
                      ->all_gather(comm::Block{&mine, 1, comm::DType::i64},
                                   comm::Block{sizes.data(), sizes.size(), comm::DType::i64})
                      .wait();
  if (!gathered) return gathered;
  // Ranks that were there before this world was made smaller keep what they wrote.
  auto& known = s_.state.index_bytes;
  known.resize(std::max(known.size(), sizes.size()));
  std::copy(sizes.begin(), sizes.end(), known.begin());
  return {};
}

Result<void> RunSaves::start(bool is_last) {
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
  if (!before) {
    // What is there says it: somebody may have removed the folder.
    const auto there = s_.directory->steps();
    const std::string rest = !there || there->empty() ? std::string("there is none to go on from")
                                                      : fmt::format("the one of step {} is there", there->back());
    log_error("checkpoint not saved: {}; {}{}", before.error().message(), rest, is_last ? "" : ", training goes on");
  }
  return started;
}

Result<void> RunSaves::last() {
  auto started = start(/*is_last=*/true);
  return started ? finish() : started;
}

Result<void> RunSaves::finish() {
  if (s_.writer == nullptr) return {};
  auto outcome = s_.writer->wait();
  if (!outcome) return std::move(outcome).error().with_context("checkpoint not saved");
  return {};
}

}  // namespace ddprun::trainer
