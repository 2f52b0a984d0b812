#include "worker/ddp/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/clock.h"

namespace ddprun::ddp {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// "bucket 2 (fc1.weight and 3 more)"
std::string describe(const BucketView& view) {
  const auto& ids = view.bucket->parameters;
  std::string text = fmt::format("bucket {} ({}", view.index, view.parameters[ids.front()].name);
  if (ids.size() > 1) text += fmt::format(" and {} more", ids.size() - 1);
  return text + ")";
}

}  // namespace

Reducer::Reducer(comm::Communicator& communicator, std::vector<ParameterInfo> parameters, bool overlap)
    : communicator_(communicator), parameters_(std::move(parameters)), overlap_(overlap) {}

Reducer::~Reducer() = default;

Result<std::unique_ptr<Reducer>> Reducer::create(comm::Communicator& communicator,
                                                 std::vector<ParameterInfo> parameters,
                                                 std::vector<ParamId> ready_order, const ReducerOptions& options) {
  std::unique_ptr<Reducer> reducer(new Reducer(communicator, std::move(parameters), options.overlap));
  Result<void> built = reducer->build(std::move(ready_order), options);
  if (!built) return built.error();
  return reducer;
}

Result<void> Reducer::build(std::vector<ParamId> ready_order, const ReducerOptions& options) {
  std::vector<char> seen(parameters_.size(), 0);
  for (ParamId id : ready_order) {
    if (id >= parameters_.size()) {
      return Error(Errc::invalid_argument,
                   fmt::format("reducer: ready order names parameter {}, the model has {}", id, parameters_.size()));
    }
    if (std::exchange(seen[id], 1) != 0) {
      return Error(Errc::invalid_argument,
                   fmt::format("reducer: parameter {} is twice in the ready order", parameters_[id].name));
    }
  }
  buckets_ = assign_buckets(parameters_, ready_order, static_cast<std::size_t>(options.first_bucket_mb * kMiB),
                            static_cast<std::size_t>(options.bucket_cap_mb * kMiB));
  Result<void> same = check_same_model(communicator_, parameters_, buckets_);
  if (!same) return same;

  const bool casts = options.compression == "fp16" || options.compression == "bf16";
  if (communicator_.device_memory() && options.compression != "none" && !(casts && options.cast)) {
    return Error(
        Errc::invalid_argument,
        fmt::format("compression {} works on CPU memory only; on GPUs use none, fp16 or bf16", options.compression));
  }
  const bool compress = options.force_compression || communicator_.crosses_hosts();
  auto hook = make_hook(compress ? options.compression : "none", options.cast);
  if (!hook) return hook.error();
  hook_ = std::move(hook).value();

  places_.assign(parameters_.size(), Place{});
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    auto memory = communicator_.allocate(bucket.count * comm::size_of(bucket.dtype));
    if (!memory) return memory.error().with_context(fmt::format("memory of bucket {}", b));
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      places_[bucket.parameters[i]] = Place{b, bucket.offsets[i]};
    }
    BucketView view;
    view.index = b;
    view.bucket = &bucket;
    view.parameters = parameters_;
    view.buffer = comm::Block{*memory, bucket.count, bucket.dtype};
    view.is_last = b + 1 == buckets_.size();
    views_.push_back(view);
  }
  ready_.assign(parameters_.size(), 0);
  missing_.assign(buckets_.size(), 0);
  return hook_->prepare(communicator_, views_);
}

std::byte* Reducer::gradient_bytes(ParamId parameter) {
  CHECK(parameter < places_.size(), "no such parameter");
  const Place& place = places_[parameter];
  if (place.bucket == kNowhere) return nullptr;
  const comm::Block& buffer = views_[place.bucket].buffer;
  return static_cast<std::byte*>(buffer.data) + place.offset * comm::size_of(buffer.dtype);
}

float* Reducer::gradient(ParamId parameter) {
  CHECK(parameter < parameters_.size() && parameters_[parameter].dtype == comm::DType::f32,
        "gradient() is for f32 parameters; use gradient_bytes()");
  return reinterpret_cast<float*>(gradient_bytes(parameter));
}

void Reducer::begin(Sync sync) {
  // Kernels add if the gradients hold a sum that no finish() has sent yet.
  accumulate_ = accumulated_;
  sync_ = sync;
  open_ = true;
  next_ = 0;
  marked_twice_.clear();
  std::fill(ready_.begin(), ready_.end(), 0);
  for (std::size_t b = 0; b < buckets_.size(); ++b) missing_[b] = buckets_[b].parameters.size();
}

void Reducer::mark_ready(ParamId parameter) {
  CHECK(open_, "mark_ready() outside begin() .. finish()");
  CHECK(parameter < places_.size(), "no such parameter");
  const Place& place = places_[parameter];
  if (place.bucket == kNowhere) return;
  if (std::exchange(ready_[parameter], 1) != 0) {
    marked_twice_.push_back(parameter);
    return;
  }
  --missing_[place.bucket];
  if (overlap_ && sync_ == Sync::now) start_full_buckets();
}

void Reducer::start_full_buckets() {
  for (; next_ < views_.size() && missing_[next_] == 0; ++next_) {
    if (!failed_) return;
    Result<void> started = hook_->start(communicator_, views_[next_]);
    if (!started) failed_ = started.error().with_context(describe(views_[next_]));
  }
}

Result<ReduceReport> Reducer::finish() {
  CHECK(open_, "finish() without begin()");
  open_ = false;
  if (!failed_) return failed_.error();

  std::string names;
  std::size_t lacking = 0;
  for (ParamId id = 0; id < ready_.size(); ++id) {
    if (places_[id].bucket == kNowhere || ready_[id] != 0) continue;
    if (++lacking <= 5) names += (names.empty() ? "" : ", ") + parameters_[id].name;
  }
  if (lacking > 0) {
    failed_ = Error(Errc::invalid_argument,
                    fmt::format("{} parameter{} got no gradient in this step: {}{}; freeze what the loss does not use",
                                lacking, lacking == 1 ? "" : "s", names, lacking > 5 ? ", ..." : ""));
  } else if (!marked_twice_.empty()) {
    failed_ = Error(Errc::invalid_argument, fmt::format("the gradient of {} was marked ready twice in one step",
                                                        parameters_[marked_twice_.front()].name));
  }
  if (!failed_) {
    communicator_.abort(failed_.error().message());  // the others would wait for our buckets
    return failed_.error();
  }

  ReduceReport report;
  report.buckets = views_.size();
  for (const Bucket& bucket : buckets_) report.size_bytes += bucket.size_bytes;
  if (sync_ == Sync::later) {
    accumulated_ = true;
    return report;
  }
  accumulated_ = false;
  const TimePoint began = SteadyClock::now();
  start_full_buckets();
  for (std::size_t b = 0; b < views_.size() && failed_; ++b) {
    Result<void> ended = hook_->finish(communicator_, views_[b]);
    if (!ended) failed_ = ended.error().with_context(describe(views_[b]));
  }
  if (!failed_) return failed_.error();
  report.waited = SteadyClock::now() - began;
  return report;
}

}  // namespace ddprun::ddp
