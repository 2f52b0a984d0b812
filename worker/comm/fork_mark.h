#pragma once

#include <atomic>

namespace ddprun::comm {

// Knows whether this process made it or is a child of fork(): a page that the kernel wipes in children. Costs one load.
class ForkMark {
 public:
  ForkMark();
  ~ForkMark();
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;

  bool here() const { return mark_->load(std::memory_order_relaxed) == 1; }

 private:
  std::atomic<unsigned>* mark_;
};

}  // namespace ddprun::comm
