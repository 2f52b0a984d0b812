#include <algorithm>

#include "worker/engine/ops/ops.h"

namespace ddprun::engine {
namespace {

class Linear final : public Op {
 public:
  Linear(std::int64_t rows, std::int64_t in, std::int64_t out, bool bias, bool in_out)
      : rows_(rows), in_(in), out_(out), bias_(bias), in_out_(in_out) {}

  const char* kind() const override { return "linear"; }
  std::uint32_t backward_reads_inputs() const override { return 1; }
  std::uint32_t backward_reads_outputs() const override { return 0; }
  bool can_add(std::size_t) const override { return true; }

  std::size_t prepare(Kernels& k, const PrepareInfo& info) const override {
    std::size_t scratch = k.prepare(forward_desc());
    if (info.training) {
      scratch = std::max(scratch, k.prepare(weight_desc(false)));
      scratch = std::max(scratch, k.prepare(weight_desc(true)));
      if (info.din_wanted[0]) scratch = std::max(scratch, k.prepare(input_desc(info.din_adds[0] != 0)));
    }
    return scratch;
  }

  void forward(const Frame& f) const override {
    f.kernels.gemm(forward_desc(), f.in(0), f.weight(0), bias_ ? f.master(1) : nullptr, f.out(), f.scratch());
  }

  void backward(const Frame& f) const override {
    if (bias_) {
      if (Master* db = f.gradient(1)) f.kernels.column_sums(rows_, out_, f.dout(), db, f.adds(1));
      f.ready(1);
    }
    if (Master* dw = f.gradient(0)) {
      const void* a = in_out_ ? f.in(0) : f.dout();
      const void* b = in_out_ ? f.dout() : f.in(0);
      f.kernels.gemm(weight_desc(f.adds(0)), a, b, nullptr, dw, f.scratch());
    }
    f.ready(0);
    if (void* dx = f.din(0)) {
      f.kernels.gemm(input_desc(f.din_adds(0)), f.dout(), f.weight(0), nullptr, dx, f.scratch());
    }
  }

 private:
  GemmDesc forward_desc() const { return {.m = rows_, .n = out_, .k = in_, .transpose_b = !in_out_, .bias = bias_}; }
  GemmDesc input_desc(bool add) const {
    return {.m = rows_, .n = in_, .k = out_, .transpose_b = in_out_, .accumulate = add};
  }
  GemmDesc weight_desc(bool add) const {
    return {.m = in_out_ ? in_ : out_,
            .n = in_out_ ? out_ : in_,
            .k = rows_,
            .transpose_a = true,
            .accumulate = add,
            .master_out = true};
  }

  std::int64_t rows_, in_, out_;
  bool bias_, in_out_;
};

}  // namespace

std::shared_ptr<const Op> make_linear(std::int64_t rows, std::int64_t in, std::int64_t out, bool bias, bool in_out) {
  return std::make_shared<Linear>(rows, in, out, bias, in_out);
}

}  // namespace ddprun::engine
