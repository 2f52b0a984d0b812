#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "worker/ddp/comm_hook.h"

namespace ddprun::ddp {
namespace {

// A gradient seen as a matrix of rows x columns (first dimension against all others) is sent as P (rows x r) and
// Q (columns x r) with P Q^T near it; what is lost is added to the next step's gradient (error feedback).
struct Matrix {
  std::size_t bucket = 0;
  std::size_t offset = 0;  // elements into the bucket
  std::size_t rows = 0, columns = 0;
  std::size_t p_offset = 0, q_offset = 0;  // into the bucket's P and Q blocks
  std::vector<float> error;
};

struct Part {
  std::vector<Matrix> matrices;
  std::vector<std::pair<std::size_t, std::size_t>> plain;  // offset and count of what is sent as it is
  comm::Block p, q, rest;
};

double norm_of(const float* p, std::size_t rows, std::size_t rank, std::size_t k) {
  double sum = 0;
  for (std::size_t i = 0; i < rows; ++i) sum += double(p[i * rank + k]) * double(p[i * rank + k]);
  return std::sqrt(sum);
}

// Modified Gram-Schmidt, twice, on the columns of a row-major matrix. A column that depends on those before it (the
// gradient has a lower rank) becomes zero: what rounding leaves of it would point anywhere.
void orthonormalise(float* p, std::size_t rows, std::size_t rank) {
  for (std::size_t k = 0; k < rank; ++k) {
    const double before = norm_of(p, rows, rank, k);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t j = 0; j < k; ++j) {
        double dot = 0;
        for (std::size_t i = 0; i < rows; ++i) dot += double(p[i * rank + k]) * double(p[i * rank + j]);
        for (std::size_t i = 0; i < rows; ++i) p[i * rank + k] -= static_cast<float>(dot) * p[i * rank + j];
      }
    }
    const double after = norm_of(p, rows, rank, k);
    const float scale = after > 1e-5 * before ? static_cast<float>(1.0 / after) : 0.0f;
    for (std::size_t i = 0; i < rows; ++i) p[i * rank + k] *= scale;
  }
}

class PowerSgdHook final : public CommHook {
 public:
  PowerSgdHook(int rank, std::uint64_t seed) : rank_(static_cast<std::size_t>(rank)), seed_(seed) {}

  std::string_view name() const override { return "powersgd"; }

  Result<void> prepare(comm::Communicator& communicator, std::span<const BucketView> buckets) override {
    parts_.resize(buckets.size());
    works_.resize(buckets.size());
    std::mt19937_64 random(seed_);  // the same Q on every rank
    std::normal_distribution<float> normal;
    for (const BucketView& view : buckets) {
      Part& part = parts_[view.index];
      std::size_t p_count = 0, q_count = 0, rest_count = 0;
      for (std::size_t i = 0; i < view.bucket->parameters.size(); ++i) {
        const ParameterInfo& parameter = view.parameters[view.bucket->parameters[i]];
        const std::size_t offset = view.bucket->offsets[i];
        const std::size_t rows = parameter.shape.size() < 2 ? 0 : static_cast<std::size_t>(parameter.shape[0]);
        const std::size_t columns = rows == 0 ? 0 : parameter.count / rows;
        // Worth it only where the two factors are smaller than the matrix.
        if (view.buffer.dtype == comm::DType::f32 && rank_ * (rows + columns) < rows * columns) {
          Matrix m;
          m.bucket = view.index;
          m.offset = offset;
          m.rows = rows;
          m.columns = columns;
          m.p_offset = p_count;
          m.q_offset = q_count;
          m.error.assign(rows * columns, 0.0f);
          p_count += rows * rank_;
          q_count += columns * rank_;
          part.matrices.push_back(std::move(m));
        } else {
          part.plain.emplace_back(offset, parameter.count);
          rest_count += parameter.count;
        }
      }
      const auto block = [&communicator](std::size_t count, comm::DType type) -> Result<comm::Block> {
        auto memory = communicator.allocate(count * comm::size_of(type));
        if (!memory) return memory.error().with_context("memory for compressed gradients");
        return comm::Block{*memory, count, type};
      };
      auto p = block(p_count, comm::DType::f32), q = block(q_count, comm::DType::f32),
           rest = block(rest_count, view.buffer.dtype);
      if (!p) return p.error();
      if (!q) return q.error();
      if (!rest) return rest.error();
      part.p = *p;
      part.q = *q;
      part.rest = *rest;
      auto* q_values = static_cast<float*>(part.q.data);
      for (std::size_t i = 0; i < q_count; ++i) q_values[i] = normal(random);
    }
    return {};
  }

  Result<void> start(comm::Communicator& communicator, const BucketView& view) override {
    Part& part = parts_[view.index];
    auto* gradient = static_cast<float*>(view.buffer.data);
    auto* p_all = static_cast<float*>(part.p.data);
    const auto* q_all = static_cast<const float*>(part.q.data);
    for (Matrix& m : part.matrices) {
      float* g = gradient + m.offset;
      float* p = p_all + m.p_offset;
      const float* q = q_all + m.q_offset;
      for (std::size_t i = 0; i < m.rows * m.columns; ++i) g[i] += m.error[i];
      for (std::size_t i = 0; i < m.rows; ++i) {
        for (std::size_t k = 0; k < rank_; ++k) {
          float sum = 0;
          for (std::size_t j = 0; j < m.columns; ++j) sum += g[i * m.columns + j] * q[j * rank_ + k];
          p[i * rank_ + k] = sum;
        }
      }
    }
    copy_plain(view, part, true);
    Started& started = works_[view.index];
    started.rest = communicator.all_reduce(part.rest, comm::Reduce::avg);
    started.p = communicator.all_reduce(part.p, comm::Reduce::avg);
    return {};
  }

  Result<void> finish(comm::Communicator& communicator, const BucketView& view) override {
    Part& part = parts_[view.index];
    Started started = std::exchange(works_[view.index], Started());
    Result<void> rest_ok = started.rest.wait(), p_ok = started.p.wait();
    if (!rest_ok) return rest_ok;
    if (!p_ok) return p_ok;
    copy_plain(view, part, false);

    auto* gradient = static_cast<float*>(view.buffer.data);
    auto* p_all = static_cast<float*>(part.p.data);
    auto* q_all = static_cast<float*>(part.q.data);
    for (Matrix& m : part.matrices) {
      const float* g = gradient + m.offset;
      float* p = p_all + m.p_offset;
      float* q = q_all + m.q_offset;
      orthonormalise(p, m.rows, rank_);
      std::fill(q, q + m.columns * rank_, 0.0f);
      for (std::size_t i = 0; i < m.rows; ++i) {
        for (std::size_t j = 0; j < m.columns; ++j) {
          for (std::size_t k = 0; k < rank_; ++k) q[j * rank_ + k] += g[i * m.columns + j] * p[i * rank_ + k];
        }
      }
    }
    // Own P Q^T first, for the error; then the mean of Q, which makes it the mean of all ranks.
    for (Matrix& m : part.matrices) {
      const float* g = gradient + m.offset;
      multiply(p_all + m.p_offset, q_all + m.q_offset, m, m.error.data());
      for (std::size_t i = 0; i < m.rows * m.columns; ++i) m.error[i] = g[i] - m.error[i];
    }
    Result<void> q_ok = communicator.all_reduce(part.q, comm::Reduce::avg).wait();
    if (!q_ok) return q_ok;
    for (Matrix& m : part.matrices) multiply(p_all + m.p_offset, q_all + m.q_offset, m, gradient + m.offset);
    return {};
  }

 private:
  struct Started {
    comm::Work rest, p;
  };

  void multiply(const float* p, const float* q, const Matrix& m, float* out) const {
    for (std::size_t i = 0; i < m.rows; ++i) {
      for (std::size_t j = 0; j < m.columns; ++j) {
        float sum = 0;
        for (std::size_t k = 0; k < rank_; ++k) sum += p[i * rank_ + k] * q[j * rank_ + k];
        out[i * m.columns + j] = sum;
      }
    }
  }

  static void copy_plain(const BucketView& view, Part& part, bool out) {
    const std::size_t size = comm::size_of(view.buffer.dtype);
    auto* bucket = static_cast<std::byte*>(view.buffer.data);
    auto* rest = static_cast<std::byte*>(part.rest.data);
    for (const auto& [offset, count] : part.plain) {
      std::byte* in_bucket = bucket + offset * size;
      out ? std::memcpy(rest, in_bucket, count * size) : std::memcpy(in_bucket, rest, count * size);
      rest += count * size;
    }
  }

  std::size_t rank_;
  std::uint64_t seed_;
  std::vector<Part> parts_;  // by bucket
  std::vector<Started> works_;
};

}  // namespace

std::unique_ptr<CommHook> make_power_sgd_hook(int rank, std::uint64_t seed) {
  return std::make_unique<PowerSgdHook>(rank, seed);
}

}  // namespace ddprun::ddp
