#include "worker/ddp/bucket.h"

#include <algorithm>
#include <array>

#include "common/check.h"

namespace ddprun::ddp {
namespace {

constexpr std::size_t kAlignment = 64;  // bytes: a cache line, and the widest vector

struct Open {
  Bucket bucket;
  std::size_t last_place = 0;  // in `order`
  std::size_t closed = 0;      // buckets of this dtype so far
};

void add(Bucket& bucket, ParamId id, const ParameterInfo& parameter) {
  const std::size_t step = kAlignment / comm::size_of(parameter.dtype);
  const std::size_t offset = (bucket.count + step - 1) / step * step;
  bucket.parameters.push_back(id);
  bucket.offsets.push_back(offset);
  bucket.count = offset + parameter.count;
  bucket.size_bytes += parameter.size_bytes();
}

}  // namespace

std::vector<Bucket> assign_buckets(std::span<const ParameterInfo> parameters, std::span<const ParamId> order,
                                   std::size_t first_limit_bytes, std::size_t limit_bytes) {
  std::array<Open, 6> open;  // by dtype
  std::vector<Open> done;
  const auto close = [&done](Open& o) {
    done.push_back(o);
    o.bucket = Bucket{};
    ++o.closed;
  };
  for (std::size_t place = 0; place < order.size(); ++place) {
    CHECK(order[place] < parameters.size(), "ready order names a parameter that does not exist");
    const ParameterInfo& parameter = parameters[order[place]];
    Open& o = open[static_cast<std::size_t>(parameter.dtype)];
    o.bucket.dtype = parameter.dtype;
    add(o.bucket, order[place], parameter);
    o.last_place = place;
    if (o.bucket.size_bytes >= (o.closed == 0 ? first_limit_bytes : limit_bytes)) close(o);
  }
  for (Open& o : open) {
    if (!o.bucket.parameters.empty()) close(o);
  }
  std::sort(done.begin(), done.end(), [](const Open& a, const Open& b) { return a.last_place < b.last_place; });
  std::vector<Bucket> buckets;
  buckets.reserve(done.size());
  for (Open& o : done) buckets.push_back(std::move(o.bucket));
  return buckets;
}

}  // namespace ddprun::ddp
