#include "worker/kernels/cpu_dnnl.h"

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/check.h"

namespace ddprun::engine {
namespace {

using dnnl::memory;

std::size_t padded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// A primitive with its memory objects, whose pointers are set at each call: the wrapper's own containers would
// allocate.
class Call {
 public:
  Call() = default;
  Call(const dnnl::engine& engine, const dnnl::primitive_desc_base& pd, std::vector<std::pair<int, memory::desc>> args)
      : primitive_(pd.get()) {
    for (auto& [index, desc] : args) {
      memories_.emplace_back(desc, engine, nullptr);
      arguments_.push_back({index, memories_.back().get()});
    }
    scratch_bytes_ = pd.scratchpad_desc().get_size();
    memories_.emplace_back(pd.scratchpad_desc(), engine, nullptr);
    arguments_.push_back({DNNL_ARG_SCRATCHPAD, memories_.back().get()});
  }

  std::size_t scratch_bytes() const { return scratch_bytes_; }

  // pointers: in the order of the arguments given to the constructor; the scratchpad last.
  void run(const dnnl::stream& stream, std::initializer_list<const void*> pointers) {
    std::size_t i = 0;
    for (const void* p : pointers) {
      dnnl_memory_set_data_handle(memories_[i++].get(), const_cast<void*>(p));
    }
    CHECK(i == memories_.size(), "wrong number of arguments for a oneDNN primitive");
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(arguments_.size()), arguments_.data());
    CHECK(status == dnnl_success, "a oneDNN primitive failed");
  }

 private:
  // dnnl::primitive has no constructor from an untyped descriptor.
  struct Primitive : dnnl::handle<dnnl_primitive_t> {
    Primitive() = default;
    explicit Primitive(const_dnnl_primitive_desc_t pd) {
      dnnl_primitive_t p = nullptr;
      CHECK(dnnl_primitive_create(&p, pd) == dnnl_success, "oneDNN could not create a primitive");
      reset(p);
    }
  };

  Primitive primitive_;
  std::vector<memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
  std::size_t scratch_bytes_ = 0;
};

struct GemmHash {
  std::size_t operator()(const GemmDesc& g) const {
    std::size_t h = static_cast<std::size_t>(g.m) * 1000003 + static_cast<std::size_t>(g.n);
    h = h * 1000003 + static_cast<std::size_t>(g.k);
    return h * 32 + (g.transpose_a ? 1u : 0u) + (g.transpose_b ? 2u : 0u) + (g.bias ? 4u : 0u) +
           (g.accumulate ? 8u : 0u);
  }
};

struct ConvHash {
  std::size_t operator()(const ConvDesc& s) const {
    std::size_t h = 0;
    for (std::int64_t v : {s.n, s.h, s.w, s.c, s.oc, s.kernel, s.stride, s.padding}) {
      h = h * 1000003 + static_cast<std::size_t>(v);
    }
    return h;
  }
};

struct Convolution {
  Call forward, backward_data, backward_weight;
  Call pack_forward, pack_backward, unpack, unpack_add;  // weights between OIHW and the library's layouts
  bool same_forward = false, same_backward = false, same_weight = false;  // the layout is OIHW already
  std::size_t weight_bytes = 0;                                           // the larger of the library's layouts, padded
};

}  // namespace

struct Dnnl::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<GemmDesc, Call, GemmHash> gemms;
  std::unordered_map<ConvDesc, Convolution, ConvHash> convolutions;

  static GemmDesc key(GemmDesc desc) {
    desc.master_out = false;  // one type here
    return desc;
  }
  static bool empty(const GemmDesc& g) { return g.m == 0 || g.n == 0 || g.k == 0; }

  Call make_gemm(const GemmDesc& g) {
    const auto f32 = memory::data_type::f32;
    const memory::desc a({g.m, g.k}, f32, g.transpose_a ? memory::dims{1, g.m} : memory::dims{g.k, 1});
    const memory::desc b({g.k, g.n}, f32, g.transpose_b ? memory::dims{1, g.k} : memory::dims{g.n, 1});
    const memory::desc c({g.m, g.n}, f32, memory::dims{g.n, 1});
    const memory::desc bias({1, g.n}, f32, memory::dims{g.n, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (g.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const auto desc = g.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc pd(desc, attributes, engine);
    std::vector<std::pair<int, memory::desc>> args = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
    if (g.bias) args.emplace_back(DNNL_ARG_BIAS, bias);
    return Call(engine, pd, std::move(args));
  }

  Call make_reorder(const memory::desc& from, const memory::desc& to, bool add) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::reorder::primitive_desc pd(engine, from, engine, to, attributes);
    return Call(engine, pd, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }

  Convolution make_convolution(const ConvDesc& s) {
    const auto f32 = memory::data_type::f32;
    const auto nhwc = memory::format_tag::nhwc;
    const memory::desc x({s.n, s.c, s.h, s.w}, f32, nhwc), y({s.n, s.oc, s.oh(), s.ow()}, f32, nhwc);
    const memory::dims dims = {s.oc, s.c, s.kernel, s.kernel}, strides = {s.stride, s.stride},
                       padding = {s.padding, s.padding};
    // The end of the image may need less padding than its start when the stride does not divide.
    const std::int64_t end_h = (s.oh() - 1) * s.stride + s.kernel - s.h - s.padding;
    const std::int64_t end_w = (s.ow() - 1) * s.stride + s.kernel - s.w - s.padding;
    const memory::dims padding_end = {end_h, end_w};
    const memory::desc any(dims, f32, memory::format_tag::any), oihw(dims, f32, memory::format_tag::oihw);
    const auto direct = dnnl::algorithm::convolution_direct;
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);

    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, direct, x, any, y, strides, padding, padding_end}, attributes, engine);
    const dnnl::convolution_backward_data::primitive_desc data({direct, x, any, y, strides, padding, padding_end},
                                                               attributes, engine, forward);
    const dnnl::convolution_backward_weights::primitive_desc weight({direct, x, any, y, strides, padding, padding_end},
                                                                    attributes, engine, forward);
    Convolution c;
    const memory::desc w_forward = forward.weights_desc(), w_data = data.weights_desc(),
                       w_weight = weight.diff_weights_desc();
    c.forward = Call(engine, forward, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w_forward}, {DNNL_ARG_DST, y}});
    c.backward_data = Call(engine, data, {{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_WEIGHTS, w_data}, {DNNL_ARG_DIFF_SRC, x}});
    c.backward_weight =
        Call(engine, weight, {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_DIFF_WEIGHTS, w_weight}});
    c.same_forward = w_forward == oihw;
    c.same_backward = w_data == oihw;
    c.same_weight = w_weight == oihw;
    if (!c.same_forward) c.pack_forward = make_reorder(oihw, w_forward, false);
    if (!c.same_backward) c.pack_backward = make_reorder(oihw, w_data, false);
    c.unpack = make_reorder(w_weight, oihw, false);
    c.unpack_add = make_reorder(w_weight, oihw, true);
    c.weight_bytes = padded(std::max({w_forward.get_size(), w_data.get_size(), w_weight.get_size()}));
    return c;
  }
};

Dnnl::Dnnl() : impl_(std::make_unique<Impl>()) {}
Dnnl::~Dnnl() = default;

std::size_t Dnnl::prepare(const GemmDesc& desc) {
  const GemmDesc key = Impl::key(desc);
  if (Impl::empty(key)) return 0;
  auto found = impl_->gemms.find(key);
  if (found == impl_->gemms.end()) found = impl_->gemms.emplace(key, impl_->make_gemm(key)).first;
  return padded(found->second.scratch_bytes());
}

void Dnnl::gemm(const GemmDesc& desc, const float* a, const float* b, const float* bias, float* c, void* scratch) {
  const GemmDesc key = Impl::key(desc);
  if (Impl::empty(key)) {  // oneDNN leaves the output alone when k is 0
    if (!key.accumulate) {
      for (std::int64_t i = 0; i < key.m * key.n; ++i) c[i] = key.bias ? bias[i % key.n] : 0.0f;
    }
    return;
  }
  const auto found = impl_->gemms.find(key);
  CHECK(found != impl_->gemms.end(), "gemm was not prepared");
  if (key.bias) {
    found->second.run(impl_->stream, {a, b, c, bias, scratch});
  } else {
    found->second.run(impl_->stream, {a, b, c, scratch});
  }
}

std::size_t Dnnl::prepare(const ConvDesc& desc) {
  auto found = impl_->convolutions.find(desc);
  if (found == impl_->convolutions.end()) {
    found = impl_->convolutions.emplace(desc, impl_->make_convolution(desc)).first;
  }
  const Convolution& c = found->second;
  std::size_t scratch = 0;
  for (const Call* call : {&c.forward, &c.backward_data, &c.backward_weight, &c.pack_forward, &c.pack_backward,
                           &c.unpack, &c.unpack_add}) {
    scratch = std::max(scratch, call->scratch_bytes());
  }
  return c.weight_bytes + padded(scratch);
}

void Dnnl::conv_forward(const ConvDesc& desc, const float* x, const float* weight, float* y, void* scratch) {
  Convolution& c = impl_->convolutions.at(desc);
  void* rest = static_cast<char*>(scratch) + c.weight_bytes;
  const void* packed = weight;
  if (!c.same_forward) {
    c.pack_forward.run(impl_->stream, {weight, scratch, rest});
    packed = scratch;
  }
  c.forward.run(impl_->stream, {x, packed, y, rest});
}

void Dnnl::conv_backward_data(const ConvDesc& desc, const float* dy, const float* weight, float* dx, void* scratch) {
  Convolution& c = impl_->convolutions.at(desc);
  void* rest = static_cast<char*>(scratch) + c.weight_bytes;
  const void* packed = weight;
  if (!c.same_backward) {
    c.pack_backward.run(impl_->stream, {weight, scratch, rest});
    packed = scratch;
  }
  c.backward_data.run(impl_->stream, {dy, packed, dx, rest});
}

void Dnnl::conv_backward_weight(const ConvDesc& desc, const float* x, const float* dy, float* dweight, bool accumulate,
                                void* scratch) {
  Convolution& c = impl_->convolutions.at(desc);
  void* rest = static_cast<char*>(scratch) + c.weight_bytes;
  if (c.same_weight && !accumulate) {
    c.backward_weight.run(impl_->stream, {x, dy, dweight, rest});
    return;
  }
  c.backward_weight.run(impl_->stream, {x, dy, scratch, rest});
  (accumulate ? c.unpack_add : c.unpack).run(impl_->stream, {scratch, dweight, rest});
}

}  // namespace ddprun::engine
