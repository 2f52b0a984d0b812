#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "worker/ddp/reducer.h"

namespace ddprun::ddp {
namespace {

// FNV-1a, 64 bits: tells different texts apart; nobody tries to make them collide.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t h = 14695981039346656037ULL;
  for (unsigned char c : text) h = (h ^ c) * 1099511628211ULL;
  return h;
}

// One line for each parameter, one for each bucket: equal texts = equal models.
std::string text_of(std::span<const ParameterInfo> parameters, std::span<const Bucket> buckets) {
  std::string text;
  for (const ParameterInfo& p : parameters) {
    text += fmt::format("{} [{}] {}\n", p.name, fmt::join(p.shape, ", "), comm::name_of(p.dtype));
  }
  for (const Bucket& b : buckets) {
    text += fmt::format("{} bytes of {}: parameters {}\n", b.size_bytes, comm::name_of(b.dtype),
                        fmt::join(b.parameters, " "));
  }
  return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

Result<void> check_same_model(comm::Communicator& communicator, std::span<const ParameterInfo> parameters,
                              std::span<const Bucket> buckets) {
  const std::size_t world = static_cast<std::size_t>(communicator.world_size());
  const std::string mine = text_of(parameters, buckets);
  // Hash and number of parameters first: 16 bytes settle the usual case.
  std::vector<std::int64_t> summary = {static_cast<std::int64_t>(hash_of(mine)),
                                       static_cast<std::int64_t>(parameters.size())};
  std::vector<std::int64_t> all(2 * world);
  Result<void> ok = communicator
                        .all_gather(comm::Block{summary.data(), 2, comm::DType::i64},
                                    comm::Block{all.data(), all.size(), comm::DType::i64})
                        .wait();
  if (!ok) return ok.error().with_context("start-up check of the model");
  std::size_t other = 0;
  while (other < world && all[2 * other] == all[0]) ++other;
  if (other == world) return {};

  std::vector<std::size_t> sizes;
  auto texts = comm::all_gather_concat(communicator, std::as_bytes(std::span(mine.data(), mine.size())), &sizes);
  if (!texts) return texts.error().with_context("start-up check of the model");
  std::vector<std::string> by_rank;
  const char* at = reinterpret_cast<const char*>(texts->data());
  for (std::size_t size : sizes) {
    by_rank.emplace_back(at, size);
    at += size;
  }
  const auto first = lines_of(by_rank[0]), second = lines_of(by_rank[other]);
  const std::size_t count = static_cast<std::size_t>(all[1]);
  if (all[1] != all[2 * other + 1]) {
    return Error(Errc::invalid_argument,
                 fmt::format("ranks have different models: rank 0 has {} parameters, rank {} has {}", all[1], other,
                             all[2 * other + 1]));
  }
  for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    const std::string_view a = i < first.size() ? first[i] : "nothing", b = i < second.size() ? second[i] : "nothing";
    if (a == b) continue;
    const std::string what = i < count ? fmt::format("parameter {}", i) : fmt::format("bucket {}", i - count);
    return Error(Errc::invalid_argument,
                 fmt::format("ranks have different models: {}: rank 0 has {}, rank {} has {}", what, a, other, b));
  }
  return Error(Errc::invalid_argument, fmt::format("ranks 0 and {} have different models", other));
}

Result<void> broadcast_state(comm::Communicator& communicator, std::span<const comm::Block> blocks) {
  // In host memory, blocks of one dtype that are small travel as one message of at most 1 MiB; each larger one alone,
  // without a copy.
  constexpr std::size_t kTogether = 1024 * 1024;
  std::vector<std::byte> packed;
  std::size_t i = 0;
  while (i < blocks.size()) {
    std::size_t end = i, bytes = 0, count = 0;
    while (!communicator.device_memory() && end < blocks.size() && blocks[end].dtype == blocks[i].dtype &&
           bytes + blocks[end].size_bytes() <= kTogether) {
      bytes += blocks[end].size_bytes();
      count += blocks[end].count;
      ++end;
    }
    Result<void> ok;
    if (end <= i + 1) {
      ok = communicator.broadcast(blocks[i], 0).wait();
      end = i + 1;
    } else {
      packed.resize(bytes);
      std::size_t at = 0;
      for (std::size_t k = i; k < end; ++k) {
        if (blocks[k].count > 0) std::memcpy(packed.data() + at, blocks[k].data, blocks[k].size_bytes());
        at += blocks[k].size_bytes();
      }
      ok = communicator.broadcast(comm::Block{packed.data(), count, blocks[i].dtype}, 0).wait();
      at = 0;
      for (std::size_t k = i; ok && k < end; ++k) {
        if (blocks[k].count > 0) std::memcpy(blocks[k].data, packed.data() + at, blocks[k].size_bytes());
        at += blocks[k].size_bytes();
      }
    }
    if (!ok) return ok.error().with_context("broadcast of the model's state");
    i = end;
  }
  return {};
}

}  // namespace ddprun::ddp
