#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "common/types.h"

namespace ddprun::comm {

// Where ranks leave addresses for each other while they connect: the round's worker store; tests have their own.
class KeyValue {
 public:
  virtual ~KeyValue() = default;
  virtual Result<void> set(std::string_view key, std::string_view value) = 0;
  // Waits for the key. Errors: timed_out.
  virtual Result<std::string> get(std::string_view key, TimePoint deadline) = 0;
  virtual Result<void> erase(std::string_view key) = 0;
  // Is the key there now?
  virtual Result<bool> has(std::string_view key);

  // Who waits for another rank by other means calls still_waiting() at this time: see RollCall.
  virtual TimePoint next_word() const { return TimePoint::max(); }
  virtual void still_waiting() {}
};

// The c10d store at `endpoint`, keys as they are (no prefix).
Result<std::unique_ptr<KeyValue>> connect_store(const Endpoint& endpoint, TimePoint deadline);

}  // namespace ddprun::comm
