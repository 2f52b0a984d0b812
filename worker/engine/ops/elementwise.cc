#include "worker/engine/ops/ops.h"

namespace ddprun::engine {
namespace {

// An activation whose backward needs its input: GELU, SiLU.
class Activation final : public Op {
 public:
  using Forward = void (ElementKernels::*)(std::int64_t count, const void* x, void* y);
  using Backward = void (ElementKernels::*)(std::int64_t count, const void* dy, const void* x, void* dx,
                                            bool accumulate);

  Activation(const char* kind, std::int64_t count, Forward to_output, Backward to_input)
      : kind_(kind), count_(count), forward_(to_output), backward_(to_input) {}
  const char* kind() const override { return kind_; }
  std::uint32_t backward_reads_inputs() const override { return 1; }
  std::uint32_t backward_reads_outputs() const override { return 0; }
  bool can_add(std::size_t) const override { return true; }
  bool forward_in_place() const override { return true; }
  std::vector<InPlace> backward_in_place() const override {
    return {{.input = 0, .over_dout = true}, {.input = 0, .over_dout = false}};
  }
  void forward(const Frame& f) const override { (f.kernels.*forward_)(count_, f.in(0), f.out()); }
  void backward(const Frame& f) const override {
    if (f.din(0)) (f.kernels.*backward_)(count_, f.dout(), f.in(0), f.din(0), f.din_adds(0));
  }

 private:
  const char* kind_;
  std::int64_t count_;
  Forward forward_;
  Backward backward_;
};

class Relu final : public Op {
 public:
  explicit Relu(std::int64_t count) : count_(count) {}
  const char* kind() const override { return "relu"; }
  std::uint32_t backward_reads_inputs() const override { return 0; }
  std::uint32_t backward_reads_outputs() const override { return 1; }
  bool can_add(std::size_t) const override { return true; }
  bool forward_in_place() const override { return true; }
  std::vector<InPlace> backward_in_place() const override { return {{.input = 0, .over_dout = true}}; }
  void forward(const Frame& f) const override { f.kernels.relu(count_, f.in(0), f.out()); }
  void backward(const Frame& f) const override {
    if (f.din(0)) f.kernels.relu_backward(count_, f.dout(), f.out(), f.din(0), f.din_adds(0));
  }

 private:
  std::int64_t count_;
};

class Add final : public Op {
 public:
  explicit Add(std::int64_t count) : count_(count) {}
  const char* kind() const override { return "add"; }
  std::uint32_t backward_reads_inputs() const override { return 0; }
  std::uint32_t backward_reads_outputs() const override { return 0; }
  bool differentiable(std::size_t) const override { return true; }
  bool can_add(std::size_t) const override { return true; }
  bool forward_in_place() const override { return true; }
  bool is_add() const override { return true; }
  void forward(const Frame& f) const override { f.kernels.add(count_, f.in(0), f.in(1), f.out()); }
  void backward(const Frame& f) const override {
    for (std::size_t i = 0; i < 2; ++i) {
      if (f.din(i) == nullptr) continue;  // the plan laid it over dout
      if (f.din_adds(i)) {
        f.kernels.accumulate(count_, f.dout(), f.din(i));
      } else {
        f.kernels.copy(f.din(i), f.dout(), static_cast<std::size_t>(count_) * size_of(f.kernels.activation_type()));
      }
    }
  }

 private:
  std::int64_t count_;
};

class Dropout final : public Op {
 public:
  Dropout(std::int64_t count, double p) : count_(count), p_(p) {}
  const char* kind() const override { return "dropout"; }
  std::uint32_t backward_reads_inputs() const override { return 0; }
  std::uint32_t backward_reads_outputs() const override { return 0; }
  bool can_add(std::size_t) const override { return true; }
  bool forward_in_place() const override { return true; }
  std::vector<InPlace> backward_in_place() const override { return {{.input = 0, .over_dout = true}}; }
  void forward(const Frame& f) const override { f.kernels.dropout(count_, p_, f.key, f.in(0), f.out()); }
  void forward_eval(const Frame& f) const override {
    if (f.out() != f.in(0)) {
      f.kernels.copy(f.out(), f.in(0), static_cast<std::size_t>(count_) * size_of(f.kernels.activation_type()));
    }
  }
  void backward(const Frame& f) const override {
    if (f.din(0)) f.kernels.dropout_backward(count_, p_, f.key, f.dout(), f.din(0), f.din_adds(0));
  }

 private:
  std::int64_t count_;
  double p_;
};

}  // namespace

std::shared_ptr<const Op> make_gelu(std::int64_t count) {
  return std::make_shared<Activation>("gelu", count, &ElementKernels::gelu, &ElementKernels::gelu_backward);
}
std::shared_ptr<const Op> make_silu(std::int64_t count) {
  return std::make_shared<Activation>("silu", count, &ElementKernels::silu, &ElementKernels::silu_backward);
}
std::shared_ptr<const Op> make_relu(std::int64_t count) { return std::make_shared<Relu>(count); }
std::shared_ptr<const Op> make_add(std::int64_t count) { return std::make_shared<Add>(count); }
std::shared_ptr<const Op> make_dropout(std::int64_t count, double p) { return std::make_shared<Dropout>(count, p); }

}  // namespace ddprun::engine
