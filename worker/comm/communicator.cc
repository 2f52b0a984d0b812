#include "worker/comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/comm/operation.h"

namespace ddprun::comm {

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::all_reduce:
      return "all_reduce";
    case OpKind::broadcast:
      return "broadcast";
    case OpKind::all_gather:
      return "all_gather";
    case OpKind::reduce_scatter:
      return "reduce_scatter";
    case OpKind::barrier:
      return "barrier";
    case OpKind::allocate:
      return "allocate";
  }
  return "unknown operation";
}

std::string Signature::describe() const {
  std::string text = std::string(name_of(kind)) + " #" + std::to_string(sequence);
  if (kind == OpKind::barrier) return text;
  text += " of " + std::to_string(count) + " " + (kind == OpKind::allocate ? "bytes" : name_of(dtype));
  const bool reduces = kind == OpKind::all_reduce || kind == OpKind::reduce_scatter;
  if (reduces && reduce != Reduce::sum) text += std::string(" (") + name_of(reduce) + ")";
  if (kind == OpKind::broadcast) text += " from rank " + std::to_string(root);
  return text;
}

std::string describe_mismatch(int rank, const Signature& theirs, int own_rank, const Signature& ours) {
  return "ranks disagree: rank " + std::to_string(rank) + " is in " + theirs.describe() + ", rank " +
         std::to_string(own_rank) + " in " + ours.describe() +
         "; all ranks must call the same collectives in the same order";
}

Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
Work::Work(Work&& other) noexcept : state_(std::move(other.state_)), waited_(other.waited_) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    if (state_ != nullptr && !waited_) state_->dropped();
    state_ = std::move(other.state_);
    waited_ = other.waited_;
  }
  return *this;
}

Work::~Work() {
  if (state_ != nullptr && !waited_) state_->dropped();
}

bool Work::done() const { return state_ == nullptr || state_->done(); }

Result<void> Work::wait() { return wait_impl(nullptr); }
Result<void> Work::wait_until(TimePoint deadline) { return wait_impl(&deadline); }

Result<void> Work::wait_impl(const TimePoint* deadline) {
  CHECK(state_ != nullptr, "wait() on an empty Work");
  waited_ = true;
  return state_->wait(deadline);
}

Result<std::vector<std::byte>> all_gather_concat(Communicator& communicator, std::span<const std::byte> mine,
                                                 std::vector<std::size_t>* sizes) {
  const std::size_t world = static_cast<std::size_t>(communicator.world_size());
  std::int64_t my_size = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> all_sizes(world);
  Result<void> ok =
      communicator.all_gather(Block{&my_size, 1, DType::i64}, Block{all_sizes.data(), world, DType::i64}).wait();
  if (!ok) return ok.error();

  const std::size_t longest = static_cast<std::size_t>(*std::max_element(all_sizes.begin(), all_sizes.end()));
  // Whole i32 words: there is no byte type, and the gather does not look at the values.
  const std::size_t words = (longest + 3) / 4;
  std::vector<std::int32_t> padded(words), all(words * world);
  if (!mine.empty()) std::memcpy(padded.data(), mine.data(), mine.size());
  if (words > 0) {
    ok = communicator.all_gather(Block{padded.data(), words, DType::i32}, Block{all.data(), all.size(), DType::i32})
             .wait();
    if (!ok) return ok.error();
  }
  std::vector<std::byte> result;
  if (sizes != nullptr) sizes->assign(all_sizes.begin(), all_sizes.end());
  for (std::size_t r = 0; r < world; ++r) {
    const auto* begin = reinterpret_cast<const std::byte*>(all.data() + r * words);
    result.insert(result.end(), begin, begin + all_sizes[r]);
  }
  return result;
}

}  // namespace ddprun::comm
