#include "worker/ddp/bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace ddprun::ddp {
namespace {

using comm::DType;
constexpr std::size_t kMiB = 1024 * 1024;

ParameterInfo parameter(std::string name, std::vector<std::int64_t> shape, DType dtype = DType::f32) {
  ParameterInfo p;
  p.name = std::move(name);
  p.dtype = dtype;
  p.count = 1;
  for (std::int64_t d : shape) p.count *= static_cast<std::size_t>(d);
  p.shape = std::move(shape);
  return p;
}

// torchvision's resnet18 in the order of its parameters().
std::vector<ParameterInfo> resnet18() {
  std::vector<ParameterInfo> all;
  const auto conv = [&all](std::string name, std::int64_t out, std::int64_t in, std::int64_t k) {
    all.push_back(parameter(name, {out, in, k, k}));
    all.push_back(parameter(name + ".bn.weight", {out}));
    all.push_back(parameter(name + ".bn.bias", {out}));
  };
  conv("conv1", 64, 3, 7);
  std::int64_t in = 64;
  for (std::int64_t out : {64, 128, 256, 512}) {
    for (int block = 0; block < 2; ++block) {
      conv("conv1", out, in, 3);
      conv("conv2", out, out, 3);
      if (block == 0 && out != 64) conv("downsample", out, in, 1);
      in = out;
    }
  }
  all.push_back(parameter("fc.weight", {1000, 512}));
  all.push_back(parameter("fc.bias", {1000}));
  return all;
}

std::vector<ParamId> forwards(std::size_t n) {
  std::vector<ParamId> order(n);
  std::iota(order.begin(), order.end(), 0);
  return order;
}
std::vector<ParamId> backwards(std::size_t n) {
  auto order = forwards(n);
  std::reverse(order.begin(), order.end());
  return order;
}

std::vector<std::size_t> sizes(const std::vector<Bucket>& buckets) {
  std::vector<std::size_t> result;
  for (const Bucket& b : buckets) result.push_back(b.size_bytes);
  return result;
}

// The lists below were measured with torch 2.15.0 (ready order: last parameter first).
TEST(Bucket, Resnet18AsTorchAfterItsRebuild) {
  const auto model = resnet18();
  ASSERT_EQ(model.size(), 62u);
  EXPECT_EQ(sizes(assign_buckets(model, backwards(62), kMiB, 25 * kMiB)),
            (std::vector<std::size_t>{2052000, 28852224, 15853824}));
}

TEST(Bucket, Resnet18AsTorchWithBucketCapOf4) {
  const auto model = resnet18();
  EXPECT_EQ(sizes(assign_buckets(model, backwards(62), 4 * kMiB, 4 * kMiB)),
            (std::vector<std::size_t>{11493280, 9441280, 9969664, 4722688, 4722688, 4267008, 2141440}));
}

TEST(Bucket, Resnet18InDefinitionOrderAsTorchWithFindUnused) {
  const auto model = resnet18();
  EXPECT_EQ(sizes(assign_buckets(model, forwards(62), kMiB, 25 * kMiB)),
            (std::vector<std::size_t>{1515776, 33744896, 11497376}));  // torch reverses this list
}

TEST(Bucket, MlpAsTorch) {
  const std::vector<ParameterInfo> model = {parameter("0.weight", {512, 784}), parameter("0.bias", {512}),
                                            parameter("2.weight", {512, 512}), parameter("2.bias", {512}),
                                            parameter("4.weight", {10, 512}),  parameter("4.bias", {10})};
  const auto buckets = assign_buckets(model, backwards(6), kMiB, 25 * kMiB);
  EXPECT_EQ(sizes(buckets), (std::vector<std::size_t>{1071144, 1607680}));
  EXPECT_EQ(buckets[0].parameters, (std::vector<ParamId>{5, 4, 3, 2}));
  EXPECT_EQ(buckets[1].parameters, (std::vector<ParamId>{1, 0}));
}

TEST(Bucket, OffsetsAreAlignedAndDoNotOverlap) {
  const std::vector<ParameterInfo> model = {parameter("a", {3}), parameter("b", {17}), parameter("c", {1})};
  const auto buckets = assign_buckets(model, forwards(3), kMiB, kMiB);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].offsets, (std::vector<std::size_t>{0, 16, 48}));
  EXPECT_EQ(buckets[0].count, 49u);
  EXPECT_EQ(buckets[0].size_bytes, 21u * 4);
}

TEST(Bucket, OneOpenBucketForEachTypeOrderedByTheirLastGradient) {
  const std::vector<ParameterInfo> model = {parameter("a", {4}), parameter("h", {4}, DType::bf16), parameter("b", {4}),
                                            parameter("i", {4}, DType::bf16)};
  const auto buckets = assign_buckets(model, forwards(4), 1000, 1000);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].parameters, (std::vector<ParamId>{0, 2}));
  EXPECT_EQ(buckets[1].parameters, (std::vector<ParamId>{1, 3}));
  EXPECT_EQ(buckets[1].dtype, DType::bf16);
}

TEST(Bucket, FrozenParametersAreInNone) {
  const std::vector<ParameterInfo> model = {parameter("a", {4}), parameter("frozen", {4}), parameter("b", {4})};
  const std::vector<ParamId> order = {2, 0};
  const auto buckets = assign_buckets(model, order, 1, 1);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].parameters, (std::vector<ParamId>{2}));
  EXPECT_EQ(buckets[1].parameters, (std::vector<ParamId>{0}));
}

}  // namespace
}  // namespace ddprun::ddp
