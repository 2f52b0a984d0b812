#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "worker/comm/key_value.h"

namespace ddprun::comm {

// The store as ranks use it while they connect. Each rank leaves a mark when it comes, so that those who wait can say
// who is missing: the lowest rank that came does, every `interval`, and an error names them all.
class RollCall final : public KeyValue {
 public:
  // store is kept. key: where the marks lie, "/ddprun/here/<restart count>".
  RollCall(KeyValue& store, std::string key, int rank, int world_size,
           std::chrono::milliseconds interval = std::chrono::seconds(10));

  Result<void> come();
  void leave();  // all are connected: a rerun under the same store must not find old marks

  Result<void> set(std::string_view key, std::string_view value) override { return store_.set(key, value); }
  // Speaks while it waits.
  Result<std::string> get(std::string_view key, TimePoint deadline) override;
  Result<void> erase(std::string_view key) override { return store_.erase(key); }
  Result<bool> has(std::string_view key) override { return store_.has(key); }
  TimePoint next_word() const override { return next_word_; }
  void still_waiting() override;

  // Ranks without a mark, ascending. Errors: the store's.
  Result<std::vector<int>> missing();
  // `why` the ranks are not connected after `limit`; the cause, if it is that ranks did not come.
  Error explain(Error why, std::chrono::milliseconds limit);

 private:
  std::string mark_of(int rank) const { return key_ + "/" + std::to_string(rank); }

  KeyValue& store_;
  std::string key_;
  int rank_, world_size_;
  std::chrono::milliseconds interval_;
  TimePoint began_, next_word_;
};

// "rank 3", "ranks 1, 3, 4 and 12 more".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace ddprun::comm
