#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/comm/communicator.h"
#include "worker/ddp/bucket.h"
#include "worker/ddp/comm_hook.h"

namespace ddprun::ddp {

struct ReducerOptions {
  double bucket_cap_mb = 25;  // MiB
  double first_bucket_mb = 1;
  bool overlap = true;               // false: all buckets start in finish()
  std::string compression = "none";  // see make_hook()
  bool force_compression = false;    // false: compression is used only where ranks are on several hosts
  CastElements cast;                 // needed for compression of device memory
};

enum class Sync : std::uint8_t {
  now,    // this backward ends with averaged gradients
  later,  // torch's no_sync: gradients add up locally, nothing is sent
};

struct ReduceReport {
  std::chrono::nanoseconds waited{0};  // in finish(): what backward did not hide
  std::size_t size_bytes = 0;          // of the gradients
  std::size_t buckets = 0;
};

// Averages gradients over the ranks while backward still runs. Gradients live in the buckets (communicator memory):
// kernels write them there and the reduction copies nothing.
//
//   reducer.begin(Sync::now);
//   backward: kernels write gradient(p) (or add to it if accumulate()), then mark_ready(p)
//   reducer.finish();            // mean over ranks is in place
//
// Thread: the one that runs backward.
class Reducer {
 public:
  // Collective. `ready_order`: the order in which backward finishes the gradients, known from the plan; parameters that
  // it leaves out are frozen. `communicator` must outlive the Reducer.
  // Errors: invalid_argument naming the first difference between two ranks' models ("parameter 3: rank 0 has
  // fc2.weight [10, 512] f32, rank 1 has fc2.weight [20, 512] f32"); those of the communicator.
  static Result<std::unique_ptr<Reducer>> create(comm::Communicator& communicator,
                                                 std::vector<ParameterInfo> parameters,
                                                 std::vector<ParamId> ready_order, const ReducerOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // `count` elements in a bucket, 64-byte aligned; nullptr for frozen parameters. gradient() is for f32.
  float* gradient(ParamId parameter);
  std::byte* gradient_bytes(ParamId parameter);
  // All gradients of one bucket, gaps (zeros) included: for one pass of clipping, inf check or an optimizer.
  std::span<const BucketView> buckets() const { return views_; }

  // Starts one micro-step. Errors: those of an earlier step that failed.
  void begin(Sync sync);
  // The gradients hold the sum of earlier Sync::later steps: kernels must add instead of overwrite.
  bool accumulate() const { return accumulate_; }
  // In any order; buckets leave strictly in index order. A parameter that is marked twice makes finish() fail.
  void mark_ready(ParamId parameter);
  // Errors: invalid_argument naming parameters that got no gradient; the communicator's, with the bucket in front.
  // A Sync::later step only checks that all are ready.
  Result<ReduceReport> finish();

 private:
  Reducer(comm::Communicator& communicator, std::vector<ParameterInfo> parameters, bool overlap);
  Result<void> build(std::vector<ParamId> ready_order, const ReducerOptions& options);
  void start_full_buckets();

  struct Place {
    std::size_t bucket = kNowhere;
    std::size_t offset = 0;  // elements
  };
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  comm::Communicator& communicator_;
  std::vector<ParameterInfo> parameters_;
  bool overlap_;
  std::vector<Bucket> buckets_;
  std::vector<BucketView> views_;
  std::vector<Place> places_;  // by ParamId
  std::unique_ptr<CommHook> hook_;

  Sync sync_ = Sync::now;
  bool accumulate_ = false;
  bool accumulated_ = false;          // the last step was Sync::later and ended
  bool open_ = false;                 // between begin() and finish()
  std::vector<char> ready_;           // by ParamId
  std::vector<std::size_t> missing_;  // by bucket: gradients not ready yet
  std::size_t next_ = 0;              // first bucket not started
  std::vector<ParamId> marked_twice_;
  Result<void> failed_;  // the first error of start(), for finish()
};

// Fails on every rank, naming the first difference, unless all ranks have the same parameters (names, shapes, dtypes)
// and the same bucket lists. Collective.
Result<void> check_same_model(comm::Communicator& communicator, std::span<const ParameterInfo> parameters,
                              std::span<const Bucket> buckets);

// Rank 0's values to all: parameters and buffers at the start, batch-norm statistics before evaluation. Small blocks
// travel together. Collective.
Result<void> broadcast_state(comm::Communicator& communicator, std::span<const comm::Block> blocks);

}  // namespace ddprun::ddp
