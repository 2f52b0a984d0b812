// Every backend against the reference in double, with odd shapes. A backend that cannot run here skips and says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "worker/device/backend.h"
#include "worker/kernels/kernels.h"
#include "worker/tensor/half.h"

namespace ddprun::engine {
namespace {

using I = std::int64_t;

struct Backend {
  std::string name;
  std::function<std::unique_ptr<Kernels>()> make;
  double tolerance;  // relative to the largest element, for a sum of one term
};

std::vector<Backend> backends() {
  auto cpu = [](DType type, const char* isa) { return [=] { return make_cpu_kernels(type, isa).value(); }; };
  // Null without a device: the test skips.
  auto gpu = [](DType type, bool tf32) {
    return [=]() -> std::unique_ptr<Kernels> {
      auto backend = cuda::load_backend();
      if (!backend) return nullptr;
      auto count = (*backend)->device_count();
      if (!count || *count == 0) return nullptr;
      auto opened = (*backend)->open(0, 0);
      if (!opened) ADD_FAILURE() << opened.error().message();
      auto made = (*backend)->make_kernels(type, tf32);
      if (!made) ADD_FAILURE() << made.error().message();
      return made ? std::move(*made) : nullptr;
    };
  };
  // TF32 rounds both factors to 11 bits (1e-3 of a product), and a bias may cancel most of a product.
  return {{"cpu", cpu(DType::f32, nullptr), 1e-5},       {"cpu_avx2", cpu(DType::f32, "avx2"), 1e-5},
          {"cpu_plain", cpu(DType::f32, "plain"), 1e-5}, {"cpu_bf16", cpu(DType::bf16, nullptr), 2e-2},
          {"cpu_f16", cpu(DType::f16, nullptr), 3e-3},   {"cuda", gpu(DType::f32, false), 1e-5},
          {"cuda_tf32", gpu(DType::f32, true), 4e-3},    {"cuda_bf16", gpu(DType::bf16, false), 2e-2},
          {"cuda_f16", gpu(DType::f16, false), 3e-3}};
}

// The same operand on the backend under test and on the reference.
class Twin {
 public:
  enum Kind { activation, master };
  Twin(Kernels& k, Kernels& r, I count, Kind kind, const std::function<double()>& value)
      : k_(k), r_(r), count_(count), type_(kind == master ? k.master_type() : k.activation_type()) {
    device_ = k.allocate(static_cast<std::size_t>(count) * 8);
    reference_ = r.allocate(static_cast<std::size_t>(count) * 8);
    std::vector<float> narrow(static_cast<std::size_t>(count));
    std::vector<double> wide(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < narrow.size(); ++i) {
      float x = static_cast<float>(value());
      if (type_ == DType::bf16) x = bf16_to_f32(f32_to_bf16(x));
      if (type_ == DType::f16) x = f16_to_f32(f32_to_f16(x));
      narrow[i] = x;
      wide[i] = static_cast<double>(x);
    }
    r.copy_in(reference_, wide.data(), wide.size() * 8);
    if (type_ == k.master_type()) {
      k.copy_in(device_, narrow.data(), narrow.size() * 4);
    } else {
      void* staging = k.allocate(narrow.size() * 4);
      k.copy_in(staging, narrow.data(), narrow.size() * 4);
      k.from_f32(device_, static_cast<const float*>(staging), count);
      k.synchronize();
      k.release(staging);
    }
  }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;
  ~Twin() {
    k_.release(device_);
    r_.release(reference_);
  }

  void* k() { return device_; }
  void* r() { return reference_; }

  // Largest difference relative to the largest reference element.
  double difference() const {
    std::vector<float> narrow(static_cast<std::size_t>(count_));
    std::vector<double> wide(narrow.size());
    r_.copy_out(wide.data(), reference_, wide.size() * 8);
    if (type_ == k_.master_type()) {
      k_.copy_out(narrow.data(), device_, narrow.size() * 4);
    } else {
      void* staging = k_.allocate(narrow.size() * 4);
      k_.to_f32(static_cast<float*>(staging), device_, count_);
      k_.copy_out(narrow.data(), staging, narrow.size() * 4);
      k_.release(staging);
    }
    double top = 1e-3, worst = 0;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      top = std::max(top, std::abs(wide[i]));
      const double d = std::abs(wide[i] - static_cast<double>(narrow[i]));
      worst = std::max(worst, std::isfinite(d) ? d : 1e30);
    }
    return worst / top;
  }

 private:
  Kernels& k_;
  Kernels& r_;
  I count_;
  DType type_;
  void* device_;
  void* reference_;
};

class KernelParity : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    k_ = GetParam().make();
    if (k_ == nullptr) GTEST_SKIP() << "no device for backend " << GetParam().name;
    r_ = make_reference_kernels();
  }

  std::unique_ptr<Twin> activations(I count, double scale = 1) {
    return std::make_unique<Twin>(*k_, *r_, count, Twin::activation,
                                  [this, scale] { return scale * normal_(random_); });
  }
  std::unique_ptr<Twin> masters(I count, double shift = 0) {
    return std::make_unique<Twin>(*k_, *r_, count, Twin::master,
                                  [this, shift] { return shift + 0.5 * normal_(random_); });
  }
  std::unique_ptr<Twin> positive(I count) {
    return std::make_unique<Twin>(*k_, *r_, count, Twin::master, [this] { return 0.5 + std::abs(normal_(random_)); });
  }
  std::vector<std::int32_t> ids(I count, I high) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(count));
    for (auto& id : out) id = static_cast<std::int32_t>(random_() % static_cast<unsigned>(high));
    return out;
  }
  // A copy of ids in the backend's memory, released at the end of the test.
  const std::int32_t* on(Kernels& k, const std::vector<std::int32_t>& values) {
    void* memory = k.allocate(std::max<std::size_t>(values.size() * 4, 4));
    k.copy_in(memory, values.data(), values.size() * 4);
    owned_.emplace_back(&k, memory);
    return static_cast<const std::int32_t*>(memory);
  }
  void* memory(Kernels& k, std::size_t size_bytes) {
    void* m = k.allocate(std::max<std::size_t>(size_bytes, 64));
    owned_.emplace_back(&k, m);
    return m;
  }
  template <typename Desc>
  void* scratch(Kernels& k, const Desc& desc) {
    return memory(k, k.prepare(desc));
  }
  void TearDown() override {
    if (k_ != nullptr) {
      const auto status = k_->status();
      EXPECT_TRUE(status) << status.error().message();
    }
    for (auto& [k, m] : owned_) k->release(m);
  }

  // terms: how many products a sum has.
  void expect_close(const Twin& t, I terms, const std::string& what) {
    EXPECT_LE(t.difference(), GetParam().tolerance * std::sqrt(static_cast<double>(std::max<I>(terms, 1)))) << what;
  }

  std::unique_ptr<Kernels> k_, r_;
  std::mt19937 random_{7};
  std::normal_distribution<double> normal_;
  std::vector<std::pair<Kernels*, void*>> owned_;
};

TEST_P(KernelParity, Gemm) {
  const I sizes[][3] = {{1, 1, 1},    {3, 17, 31}, {65, 31, 17}, {17, 65, 3},   {1, 65, 31},
                        {64, 48, 32}, {31, 1, 65}, {0, 17, 3},   {130, 10, 70}, {5, 7, 0}};
  for (const auto& [m, n, kk] : sizes) {
    for (int flags = 0; flags < 32; ++flags) {
      GemmDesc g{.m = m, .n = n, .k = kk};
      g.transpose_a = (flags & 1) != 0;
      g.transpose_b = (flags & 2) != 0;
      g.bias = (flags & 4) != 0;
      g.accumulate = (flags & 8) != 0;
      g.master_out = (flags & 16) != 0;
      if (g.bias && g.accumulate) continue;  // nobody asks for both
      auto a = activations(m * kk), b = activations(kk * n), bias = masters(n);
      auto c = g.master_out ? masters(m * n) : activations(m * n);
      void* sk = scratch(*k_, g);
      k_->gemm(g, a->k(), b->k(), bias->k(), c->k(), sk);
      r_->gemm(g, a->r(), b->r(), bias->r(), c->r(), nullptr);
      expect_close(*c, kk,
                   "m, n, k, flags " + std::to_string(m) + " " + std::to_string(n) + " " + std::to_string(kk) + " " +
                       std::to_string(flags));
    }
  }
}

TEST_P(KernelParity, ColumnSums) {
  for (const auto& [rows, columns] : std::vector<std::pair<I, I>>{{1, 1}, {3, 17}, {1000, 65}, {700, 31}, {0, 5}}) {
    for (bool add : {false, true}) {
      auto x = activations(rows * columns);
      auto out = masters(columns);
      k_->column_sums(rows, columns, x->k(), out->k(), add);
      r_->column_sums(rows, columns, x->r(), out->r(), add);
      expect_close(*out, rows, "column_sums");
    }
  }
}

TEST_P(KernelParity, Convolution) {
  const ConvDesc shapes[] = {{.n = 2, .h = 9, .w = 7, .c = 3, .oc = 5, .kernel = 3, .stride = 1, .padding = 1},
                             {.n = 1, .h = 17, .w = 17, .c = 3, .oc = 16, .kernel = 7, .stride = 2, .padding = 3},
                             {.n = 3, .h = 8, .w = 8, .c = 16, .oc = 32, .kernel = 3, .stride = 2, .padding = 1},
                             {.n = 2, .h = 8, .w = 8, .c = 16, .oc = 24, .kernel = 1, .stride = 2, .padding = 0},
                             {.n = 2, .h = 5, .w = 5, .c = 17, .oc = 31, .kernel = 1, .stride = 1, .padding = 0},
                             {.n = 1, .h = 1, .w = 1, .c = 1, .oc = 1, .kernel = 1, .stride = 1, .padding = 0}};
  for (const ConvDesc& s : shapes) {
    const I xs = s.n * s.h * s.w * s.c, ys = s.n * s.oh() * s.ow() * s.oc, ws = s.oc * s.c * s.kernel * s.kernel;
    auto x = activations(xs), w = activations(ws), y = activations(ys), dy = activations(ys), dx = activations(xs);
    auto dw = masters(ws);
    void* sk = scratch(*k_, s);
    k_->conv_forward(s, x->k(), w->k(), y->k(), sk);
    r_->conv_forward(s, x->r(), w->r(), y->r(), nullptr);
    expect_close(*y, s.c * s.kernel * s.kernel, "conv_forward");
    k_->conv_backward_data(s, dy->k(), w->k(), dx->k(), sk);
    r_->conv_backward_data(s, dy->r(), w->r(), dx->r(), nullptr);
    expect_close(*dx, s.oc * s.kernel * s.kernel, "conv_backward_data");
    for (bool add : {false, true}) {
      k_->conv_backward_weight(s, x->k(), dy->k(), dw->k(), add, sk);
      r_->conv_backward_weight(s, x->r(), dy->r(), dw->r(), add, nullptr);
      expect_close(*dw, s.n * s.oh() * s.ow(), "conv_backward_weight");
    }
  }
}

// The short batch at an epoch's end may be one sample, and its last feature map one position.
TEST_P(KernelParity, BatchNormOfOneRowKeepsTheRunningVarianceFinite) {
  const BatchNormDesc s{.rows = 1, .channels = 3};
  auto x = activations(3), y = activations(3);
  auto gamma = masters(3, 1), beta = masters(3), rm = masters(3), rv = positive(3), mean = masters(3),
       rstd = masters(3);
  k_->batch_norm_train(s, x->k(), nullptr, gamma->k(), beta->k(), rm->k(), rv->k(), mean->k(), rstd->k(), y->k(),
                       scratch(*k_, s));
  r_->batch_norm_train(s, x->r(), nullptr, gamma->r(), beta->r(), rm->r(), rv->r(), mean->r(), rstd->r(), y->r(),
                       nullptr);
  for (Twin* t : {rm.get(), rv.get()}) expect_close(*t, 4, "batch_norm_train");
}

TEST_P(KernelParity, BatchNorm) {
  for (const auto& [rows, channels] : std::vector<std::pair<I, I>>{{7, 1}, {31, 3}, {65, 17}, {300, 65}}) {
    for (int flags = 0; flags < 8; ++flags) {
      BatchNormDesc s{.rows = rows, .channels = channels};
      s.relu = (flags & 1) != 0;
      s.residual = (flags & 2) != 0;
      const bool add = (flags & 4) != 0;
      const I n = rows * channels;
      auto x = activations(n), other = activations(n), y = activations(n), dy = activations(n), dx = activations(n),
           dother = activations(n);
      auto gamma = masters(channels, 1), beta = masters(channels), rm = masters(channels), rv = positive(channels),
           mean = masters(channels), rstd = masters(channels), dg = masters(channels), db = masters(channels);
      void* sk = scratch(*k_, s);
      void* res_k = s.residual ? other->k() : nullptr;
      void* res_r = s.residual ? other->r() : nullptr;
      k_->batch_norm_train(s, x->k(), res_k, gamma->k(), beta->k(), rm->k(), rv->k(), mean->k(), rstd->k(), y->k(), sk);
      r_->batch_norm_train(s, x->r(), res_r, gamma->r(), beta->r(), rm->r(), rv->r(), mean->r(), rstd->r(), y->r(),
                           nullptr);
      for (Twin* t : {y.get(), rm.get(), rv.get(), mean.get(), rstd.get()}) expect_close(*t, 4, "batch_norm_train");
      // dy is zero where the outputs of the two sides may lie on different sides of 0.
      void* dres_k = s.residual ? dother->k() : nullptr;
      void* dres_r = s.residual ? dother->r() : nullptr;
      auto sign = activations(n);  // y of backward: the same on both sides
      k_->batch_norm_backward(s, dy->k(), x->k(), sign->k(), gamma->k(), mean->k(), rstd->k(), dx->k(), dres_k, add,
                              dg->k(), db->k(), add, sk);
      r_->batch_norm_backward(s, dy->r(), x->r(), sign->r(), gamma->r(), mean->r(), rstd->r(), dx->r(), dres_r, add,
                              dg->r(), db->r(), add, nullptr);
      for (Twin* t : {dx.get(), dg.get(), db.get()}) expect_close(*t, rows, "batch_norm_backward");
      if (s.residual) expect_close(*dother, 1, "residual");
      k_->batch_norm_eval(s, x->k(), res_k, gamma->k(), beta->k(), rm->k(), rv->k(), y->k());
      r_->batch_norm_eval(s, x->r(), res_r, gamma->r(), beta->r(), rm->r(), rv->r(), y->r());
      expect_close(*y, 4, "batch_norm_eval");
    }
  }
}

TEST_P(KernelParity, LayerNorm) {
  for (const auto& [rows, columns] : std::vector<std::pair<I, I>>{{1, 3}, {31, 17}, {3, 65}, {200, 130}, {0, 4}}) {
    for (bool add : {false, true}) {
      const LayerNormDesc s{.rows = rows, .columns = columns};
      const I n = rows * columns;
      auto x = activations(n), y = activations(n), dy = activations(n), dx = activations(n);
      auto gamma = masters(columns, 1), beta = masters(columns), mean = masters(rows), rstd = masters(rows),
           dg = masters(columns), db = masters(columns);
      void* sk = scratch(*k_, s);
      k_->layer_norm(s, x->k(), gamma->k(), beta->k(), mean->k(), rstd->k(), y->k());
      r_->layer_norm(s, x->r(), gamma->r(), beta->r(), mean->r(), rstd->r(), y->r());
      expect_close(*y, 4, "layer_norm");
      k_->layer_norm_backward(s, dy->k(), x->k(), gamma->k(), mean->k(), rstd->k(), dx->k(), add, dg->k(), db->k(), add,
                              sk);
      r_->layer_norm_backward(s, dy->r(), x->r(), gamma->r(), mean->r(), rstd->r(), dx->r(), add, dg->r(), db->r(), add,
                              nullptr);
      expect_close(*dx, columns, "layer_norm_backward dx");
      expect_close(*dg, rows, "layer_norm_backward dgamma");
      expect_close(*db, rows, "layer_norm_backward dbeta");
    }
  }
}

TEST_P(KernelParity, Elementwise) {
  for (I n : {I{1}, I{3}, I{17}, I{65}, I{40001}}) {
    auto x = activations(n, 3), y = activations(n), dy = activations(n), dx = activations(n);
    k_->gelu(n, x->k(), y->k());
    r_->gelu(n, x->r(), y->r());
    expect_close(*y, 1, "gelu");
    k_->silu(n, x->k(), y->k());
    r_->silu(n, x->r(), y->r());
    expect_close(*y, 1, "silu");
    for (bool add : {false, true}) {
      k_->gelu_backward(n, dy->k(), x->k(), dx->k(), add);
      r_->gelu_backward(n, dy->r(), x->r(), dx->r(), add);
      expect_close(*dx, 1, "gelu_backward");
      k_->silu_backward(n, dy->k(), x->k(), dx->k(), add);
      r_->silu_backward(n, dy->r(), x->r(), dx->r(), add);
      expect_close(*dx, 1, "silu_backward");
      k_->relu_backward(n, dy->k(), x->k(), dx->k(), add);
      r_->relu_backward(n, dy->r(), x->r(), dx->r(), add);
      expect_close(*dx, 1, "relu_backward");
    }
    k_->relu(n, x->k(), y->k());
    r_->relu(n, x->r(), y->r());
    expect_close(*y, 1, "relu");
    k_->add(n, x->k(), dy->k(), y->k());
    r_->add(n, x->r(), dy->r(), y->r());
    expect_close(*y, 1, "add");
    k_->accumulate(n, x->k(), y->k());
    r_->accumulate(n, x->r(), y->r());
    expect_close(*y, 1, "accumulate");
  }
}

TEST_P(KernelParity, DropoutDrawsTheSameMaskEverywhere) {
  const RandomKey key{.seed = 0x123456789abcdef0, .step = 7, .stream = 3, .op = 12};
  for (I n : {I{1}, I{17}, I{40001}}) {
    auto x = activations(n), y = activations(n), dx = activations(n);
    k_->dropout(n, 0.3, key, x->k(), y->k());
    r_->dropout(n, 0.3, key, x->r(), y->r());
    expect_close(*y, 1, "dropout");
    k_->dropout_backward(n, 0.3, key, x->k(), dx->k(), true);
    r_->dropout_backward(n, 0.3, key, x->r(), dx->r(), true);
    expect_close(*dx, 1, "dropout_backward");
  }
}

TEST_P(KernelParity, Embedding) {
  const I count = 50, dim = 17, rows = 9;
  const auto tokens = ids(count, rows);
  auto w = activations(rows * dim), y = activations(count * dim), dy = activations(count * dim);
  auto dw = masters(rows * dim);
  k_->embedding(count, dim, on(*k_, tokens), w->k(), y->k());
  r_->embedding(count, dim, on(*r_, tokens), w->r(), y->r());
  expect_close(*y, 1, "embedding");
  for (bool add : {false, true}) {
    k_->embedding_backward(count, dim, rows, on(*k_, tokens), dy->k(), dw->k(), add);
    r_->embedding_backward(count, dim, rows, on(*r_, tokens), dy->r(), dw->r(), add);
    expect_close(*dw, count, "embedding_backward");
  }
  // More tokens than a kernel looks at in one piece, ids that come once, and rows that come not at all.
  const I many = 1100, narrow = 3, table = 3000;
  auto scattered = ids(many, table - 1);
  std::fill(scattered.begin() + 5, scattered.begin() + 9, table - 1);
  scattered.back() = table - 1;
  auto dy_many = activations(many * narrow);
  auto dw_table = masters(table * narrow);
  for (bool add : {true, false}) {
    k_->embedding_backward(many, narrow, table, on(*k_, scattered), dy_many->k(), dw_table->k(), add);
    r_->embedding_backward(many, narrow, table, on(*r_, scattered), dy_many->r(), dw_table->r(), add);
    expect_close(*dw_table, 5, "embedding_backward");
  }
  auto positions = activations(10 * dim), z = activations(count * dim);
  k_->add_broadcast(5, 10 * dim, y->k(), positions->k(), z->k());
  r_->add_broadcast(5, 10 * dim, y->r(), positions->r(), z->r());
  expect_close(*z, 1, "add_broadcast");
}

TEST_P(KernelParity, Attention) {
  const AttentionDesc shapes[] = {{.batch = 1, .tokens = 1, .heads = 1, .head_dim = 1},
                                  {.batch = 2, .tokens = 17, .heads = 3, .head_dim = 5},
                                  {.batch = 1, .tokens = 65, .heads = 2, .head_dim = 32},
                                  {.batch = 1, .tokens = 131, .heads = 1, .head_dim = 64},
                                  {.batch = 2, .tokens = 31, .heads = 2, .head_dim = 17, .dropout = 0.25}};
  const RandomKey key{.seed = 9, .step = 1, .stream = 0, .op = 4};
  for (const AttentionDesc& s : shapes) {
    const I n = s.batch * s.tokens * s.heads * s.head_dim;
    auto qkv = activations(3 * n), y = activations(n), dy = activations(n), dqkv = activations(3 * n);
    auto lse = masters(s.batch * s.heads * s.tokens);
    void* sk = scratch(*k_, s);
    k_->attention(s, key, qkv->k(), y->k(), lse->k(), sk);
    r_->attention(s, key, qkv->r(), y->r(), lse->r(), nullptr);
    expect_close(*y, s.head_dim, "attention");
    expect_close(*lse, s.head_dim, "attention log_sum");
    k_->attention_backward(s, key, dy->k(), qkv->k(), y->k(), lse->k(), dqkv->k(), sk);
    r_->attention_backward(s, key, dy->r(), qkv->r(), y->r(), lse->r(), dqkv->r(), nullptr);
    expect_close(*dqkv, s.tokens, "attention_backward");
  }
}

TEST_P(KernelParity, Pools) {
  const PoolDesc shapes[] = {{.n = 2, .h = 9, .w = 7, .c = 17, .kernel = 3, .stride = 2, .padding = 1},
                             {.n = 1, .h = 4, .w = 4, .c = 1, .kernel = 2, .stride = 2, .padding = 0}};
  for (const PoolDesc& s : shapes) {
    const I xs = s.n * s.h * s.w * s.c, ys = s.n * s.oh() * s.ow() * s.c;
    auto x = activations(xs), y = activations(ys), dy = activations(ys), dx = activations(xs);
    void* index_k = memory(*k_, static_cast<std::size_t>(ys));
    void* index_r = memory(*r_, static_cast<std::size_t>(ys));
    k_->max_pool(s, x->k(), y->k(), static_cast<std::uint8_t*>(index_k));
    r_->max_pool(s, x->r(), y->r(), static_cast<std::uint8_t*>(index_r));
    expect_close(*y, 1, "max_pool");
    for (bool add : {false, true}) {
      k_->max_pool_backward(s, dy->k(), static_cast<std::uint8_t*>(index_k), dx->k(), add);
      r_->max_pool_backward(s, dy->r(), static_cast<std::uint8_t*>(index_r), dx->r(), add);
      expect_close(*dx, 4, "max_pool_backward");
    }
    auto mean = activations(s.n * s.c);
    k_->mean_pool(s.n, s.h * s.w, s.c, x->k(), mean->k());
    r_->mean_pool(s.n, s.h * s.w, s.c, x->r(), mean->r());
    expect_close(*mean, s.h * s.w, "mean_pool");
    for (bool add : {false, true}) {
      k_->mean_pool_backward(s.n, s.h * s.w, s.c, mean->k(), dx->k(), add);
      r_->mean_pool_backward(s.n, s.h * s.w, s.c, mean->r(), dx->r(), add);
      expect_close(*dx, 4, "mean_pool_backward");
    }
  }
}

TEST_P(KernelParity, MaxPoolGivesATieToTheFirst) {
  const PoolDesc s{.n = 1, .h = 2, .w = 2, .c = 1, .kernel = 2, .stride = 2, .padding = 0};
  Twin x(*k_, *r_, 4, Twin::activation, [] { return 1.5; });
  auto y = activations(1);
  void* index = memory(*k_, 4);
  k_->max_pool(s, x.k(), y->k(), static_cast<std::uint8_t*>(index));
  std::uint8_t where = 9;
  k_->copy_out(&where, index, 1);
  EXPECT_EQ(where, 0);
}

// As torch has it: nan wins wherever it stands in the window, the last one of several.
TEST_P(KernelParity, MaxPoolPassesNanOn) {
  const PoolDesc s{.n = 1, .h = 2, .w = 2, .c = 5, .kernel = 2, .stride = 2, .padding = 0};
  // Columns are channels, rows the four taps.
  const double values[4][5] = {{NAN, 1, 1, 1, NAN}, {2, NAN, 2, 2, 2}, {3, 3, NAN, 3, NAN}, {4, 4, 4, NAN, 4}};
  int next = 0;
  Twin x(*k_, *r_, 20, Twin::activation, [&] {
    const int i = next++;
    return values[i / 5][i % 5];
  });
  auto y = activations(5);
  void* index_k = memory(*k_, 5);
  void* index_r = memory(*r_, 5);
  k_->max_pool(s, x.k(), y->k(), static_cast<std::uint8_t*>(index_k));
  r_->max_pool(s, x.r(), y->r(), static_cast<std::uint8_t*>(index_r));
  std::uint8_t where_k[5], where_r[5];
  k_->copy_out(where_k, index_k, 5);
  r_->copy_out(where_r, index_r, 5);
  for (int c = 0; c < 5; ++c) {
    const int expected = c == 4 ? 2 : c;
    EXPECT_EQ(where_k[c], expected) << c;
    EXPECT_EQ(where_r[c], expected) << c;
  }
  float* widened = static_cast<float*>(memory(*k_, 20));
  k_->to_f32(widened, y->k(), 5);
  float out[5];
  k_->copy_out(out, widened, 20);
  for (float v : out) EXPECT_TRUE(std::isnan(v));
}

TEST_P(KernelParity, CrossEntropy) {
  for (const auto& [rows, classes] : std::vector<std::pair<I, I>>{{1, 2}, {17, 31}, {130, 65}, {40, 1000}}) {
    for (double smoothing : {0.0, 0.1}) {
      const CrossEntropyDesc s{.rows = rows, .classes = classes, .label_smoothing = smoothing, .ignore_index = -100};
      auto targets = ids(rows, classes);
      if (rows > 5) targets[4] = -100;
      const std::int32_t* on_k = on(*k_, targets);
      const std::int32_t* on_r = on(*r_, targets);
      auto logits = activations(rows * classes, rows > 1 ? 4 : 1), grad = activations(rows * classes);
      auto lse = masters(rows);
      void* loss_k = memory(*k_, 8);
      double expected = 0, loss = 0;
      k_->cross_entropy(s, logits->k(), on_k, static_cast<double*>(loss_k), lse->k(), scratch(*k_, s));
      r_->cross_entropy(s, logits->r(), on_r, &expected, lse->r(), nullptr);
      k_->copy_out(&loss, loss_k, 8);
      EXPECT_NEAR(loss, expected, 1e-5 * std::max(expected, 0.1));
      k_->cross_entropy_backward(s, logits->k(), on_k, lse->k(), 3.5, grad->k());
      r_->cross_entropy_backward(s, logits->r(), on_r, lse->r(), 3.5, grad->r());
      expect_close(*grad, 1, "cross_entropy_backward");
    }
  }
}

TEST_P(KernelParity, Mse) {
  for (I n : {I{1}, I{31}, I{1000}}) {
    auto a = activations(n), b = activations(n), grad = activations(n);
    void* loss_k = memory(*k_, 8);
    double expected = 0, loss = 0;
    k_->mse(n, a->k(), b->k(), static_cast<double*>(loss_k));
    r_->mse(n, a->r(), b->r(), &expected);
    k_->copy_out(&loss, loss_k, 8);
    EXPECT_NEAR(loss, expected, 1e-6 * expected);
    k_->mse_backward(n, a->k(), b->k(), 2, grad->k());
    r_->mse_backward(n, a->r(), b->r(), 2, grad->r());
    expect_close(*grad, 1, "mse_backward");
  }
}

TEST_P(KernelParity, OptimizersAndNorm) {
  const I n = 1003;
  auto p = masters(n), g = masters(n), m = masters(n), v = positive(n);
  auto chunks = [&](bool on_k, int states) {
    UpdateChunk c;
    c.parameter = on_k ? p->k() : p->r();
    c.gradient = on_k ? g->k() : g->r();
    if (states > 0) c.state1 = on_k ? m->k() : m->r();
    if (states > 1) c.state2 = on_k ? v->k() : v->r();
    c.count = n;
    c.decay = 0.01;
    return std::vector<UpdateChunk>{c};
  };
  auto tight = [&](const Twin& t, const char* what) { EXPECT_LE(t.difference(), 2e-6) << what; };
  for (bool nesterov : {false, true}) {
    for (bool first : {true, false}) {
      const SgdUpdate u{.lr = 0.1, .momentum = 0.9, .nesterov = nesterov, .first = first, .unscale = 0.5, .clip = 0.7};
      k_->sgd(chunks(true, 1), u);
      r_->sgd(chunks(false, 1), u);
      tight(*p, "sgd");
      tight(*m, "sgd momentum");
    }
  }
  k_->sgd(chunks(true, 0), {.lr = 0.1});
  r_->sgd(chunks(false, 0), {.lr = 0.1});
  tight(*p, "sgd without momentum");
  AdamwUpdate u{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .correction1 = 0.19, .correction2 = 0.002};
  k_->adamw(chunks(true, 2), u);
  r_->adamw(chunks(false, 2), u);
  tight(*p, "adamw");
  tight(*m, "exp_avg");
  tight(*v, "exp_avg_sq");
  u.decoupled = false;
  k_->adamw(chunks(true, 2), u);
  r_->adamw(chunks(false, 2), u);
  tight(*p, "adam");
  tight(*v, "adam's exp_avg_sq");
  const GradientNorm a = k_->gradient_norm(chunks(true, 0), 0.5), b = r_->gradient_norm(chunks(false, 0), 0.5);
  EXPECT_NEAR(a.squared, b.squared, 1e-5 * b.squared);
  EXPECT_FALSE(a.found_inf);
}

TEST_P(KernelParity, NormFindsInfAndNan) {
  for (float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> g(70, 1.0f);
    g[66] = bad;
    void* device = memory(*k_, g.size() * 4);
    k_->copy_in(device, g.data(), g.size() * 4);
    UpdateChunk c;
    c.gradient = device;
    c.count = static_cast<I>(g.size());
    EXPECT_TRUE(k_->gradient_norm(std::vector<UpdateChunk>{c}, 1).found_inf);
    c.count = 66;
    EXPECT_FALSE(k_->gradient_norm(std::vector<UpdateChunk>{c}, 1).found_inf);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, KernelParity, ::testing::ValuesIn(backends()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace ddprun::engine
