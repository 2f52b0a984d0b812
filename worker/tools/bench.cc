#include "worker/tools/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "common/exit_code.h"
#include "common/options.h"
#include "worker/comm/factory.h"
#include "worker/device/backend.h"
#include "worker/tensor/half.h"
#include "worker/tools/subcommand.h"

namespace ddprun::comm {
namespace {

enum class What { all_reduce, all_gather, reduce_scatter, broadcast };

constexpr struct {
  const char* name;
  What what;
} kCollectives[] = {{"all-reduce", What::all_reduce},
                    {"all-gather", What::all_gather},
                    {"reduce-scatter", What::reduce_scatter},
                    {"broadcast", What::broadcast}};

struct Row {
  std::size_t size_bytes = 0, count = 0;
  double mean_us = 0, best_us = 0;
  double algbw = 0, busbw = 0;  // GB/s of the mean, as nccl-tests prints them
  std::int64_t wrong = 0;
};

OptionTable option_table() {
  std::vector<OptionSpec> options = {
      make_option("size", OptionKind::text, "25MiB", "SIZE", "bytes of the whole tensor: 4096, 64KiB, 25MiB, 4GiB"),
      make_option("count", OptionKind::integer, "", "N",
                  "elements instead of bytes; 1073741824 is the common 4 GiB run"),
      make_option("sweep", OptionKind::text, "", "FROM:TO", "all sizes from FROM to TO, each --factor times the last"),
      make_option("factor", OptionKind::integer, "2", "N", "step of --sweep"),
      make_option("rounds", OptionKind::integer, "10", "N", "measured rounds for each size"),
      make_option("warm-up", OptionKind::integer, "3", "N", "rounds before them"),
      make_option("dtype", OptionKind::choice, "f32", "TYPE", "element type"),
      make_option("backend", OptionKind::choice, "auto", "NAME", "auto, nccl or cpu"),
      make_option("memory", OptionKind::choice, "owned", "KIND",
                  "owned: the communicator's memory; foreign: any other"),
      make_option("timeout", OptionKind::integer, "60", "SECONDS", "of each collective"),
      make_option("json", OptionKind::flag, "", "", "one JSON object instead of the table")};
  for (OptionSpec& o : options) {
    if (o.kind == OptionKind::integer) o.min_value = 1;
    if (o.name == "warm-up") o.min_value = 0;
    if (o.name == "rounds" || o.name == "warm-up") o.max_value = 1'000'000'000;
    if (o.name == "timeout") o.max_value = 1'000'000;
    if (o.name == "factor") o.min_value = 2;
    if (o.name == "dtype") o.choices = {"f32", "f64", "bf16", "f16", "i32", "i64"};
    if (o.name == "backend") o.choices = {"auto", "nccl", "cpu"};
    if (o.name == "memory") o.choices = {"owned", "foreign"};
  }
  return OptionTable("trainer bench", "trainer bench all-reduce|all-gather|reduce-scatter|broadcast [options]",
                     std::move(options), RestPolicy::list);
}

// More than any host or GPU has: what is larger is a slip, and sums of it would wrap around.
constexpr std::size_t kMostBytes = std::size_t{1} << 42;

Error too_large(std::string_view what) {
  return Error(Errc::invalid_argument, fmt::format("{} is more than 4 TiB, the most for one tensor", what));
}

Result<std::size_t> parse_size(const std::string& text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  std::size_t factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  if (unit == "K" || unit == "KiB") factor = std::size_t{1} << 10;
  if (unit == "M" || unit == "MiB") factor = std::size_t{1} << 20;
  if (unit == "G" || unit == "GiB") factor = std::size_t{1} << 30;
  if (unit == "T" || unit == "TiB") factor = std::size_t{1} << 40;
  if (error == std::errc::result_out_of_range) return too_large(text);
  if (error != std::errc() || factor == 0 || value == 0) {
    return Error(Errc::invalid_argument,
                 fmt::format("\"{}\" is no size; write bytes or a unit: 4096, 64KiB, 25MiB, 4GiB", text));
  }
  if (value > kMostBytes / factor) return too_large(text);
  return value * factor;
}

Result<std::vector<std::size_t>> sizes_of(const ParsedOptions& options, std::size_t element) {
  if (options.given("count")) {
    const auto count = static_cast<std::size_t>(options.integer("count"));
    if (count > kMostBytes / element) return too_large(fmt::format("--count {}", count));
    return std::vector<std::size_t>{count * element};
  }
  if (!options.given("sweep")) {
    auto one = parse_size(options.text("size"));
    if (!one) return one.error().with_context("--size");
    return std::vector<std::size_t>{*one};
  }
  const std::string& text = options.text("sweep");
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) {
    return Error(Errc::invalid_argument, fmt::format("--sweep \"{}\": write FROM:TO, such as 4KiB:256MiB", text));
  }
  auto from = parse_size(text.substr(0, colon)), to = parse_size(text.substr(colon + 1));
  if (!from) return from.error().with_context("--sweep");
  if (!to) return to.error().with_context("--sweep");
  if (*from > *to) return Error(Errc::invalid_argument, fmt::format("--sweep \"{}\": FROM is larger than TO", text));
  std::vector<std::size_t> sizes;
  const auto factor = static_cast<std::size_t>(options.integer("factor"));
  for (std::size_t s = *from; s <= *to; s *= factor) {
    sizes.push_back(s);
    if (s > *to / factor) break;  // the next one is larger, or would wrap around
  }
  return sizes;
}

// Small whole numbers whose sums over all ranks are exact in the type.
class Values {
 public:
  Values(DType dtype, int world) : world_(world) {
    const int most = dtype == DType::bf16 ? 256 : dtype == DType::f16 ? 2048 : 1 << 24;  // up to here each is exact
    span_ = static_cast<std::size_t>(std::clamp(most / world + 1, 1, 8));
  }
  int of(int rank, std::size_t i) const { return static_cast<int>((i + static_cast<std::size_t>(rank) * 3) % span_); }
  int sum(std::size_t i) const {
    int total = 0;
    for (int r = 0; r < world_; ++r) total += of(r, i);
    return total;
  }

 private:
  int world_;
  std::size_t span_;
};

void store(std::byte* at, DType dtype, int v) {
  const auto put = [at](auto value) { std::memcpy(at, &value, sizeof value); };
  switch (dtype) {
    case DType::f32:
      return put(static_cast<float>(v));
    case DType::f64:
      return put(static_cast<double>(v));
    case DType::bf16:
      return put(f32_to_bf16(static_cast<float>(v)));
    case DType::f16:
      return put(f32_to_f16(static_cast<float>(v)));
    case DType::i32:
      return put(static_cast<std::int32_t>(v));
    case DType::i64:
      return put(static_cast<std::int64_t>(v));
  }
}

// Where the tensors lie: in this process, or on its GPU.
class Memory {
 public:
  explicit Memory(cuda::DeviceContext* device) : device_(device) {}

  Result<std::byte*> allocate(std::size_t size) {
    if (device_ == nullptr) {
      std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[size]());
      if (!memory) return Error(Errc::system, fmt::format("no memory for a tensor of {} bytes", size));
      host_.push_back(std::move(memory));
      return host_.back().get();
    }
    auto* memory = static_cast<std::byte*>(device_->allocate(size, "bench"));
    if (memory == nullptr) return device_->status().error();
    return memory;
  }
  void write(std::byte* to, const std::vector<std::byte>& from) {
    if (from.empty()) return;
    if (device_ == nullptr) {
      std::memcpy(to, from.data(), from.size());
      return;
    }
    device_->upload(to, from.data(), from.size());
    device_->synchronize();
  }
  std::vector<std::byte> read(const std::byte* from, std::size_t size) {
    std::vector<std::byte> to(size);
    if (size == 0) return to;
    device_ == nullptr ? static_cast<void>(std::memcpy(to.data(), from, size))
                       : device_->download(to.data(), from, size);
    return to;
  }
  void zero(std::byte* place, std::size_t size) {
    if (device_ == nullptr) {
      std::memset(place, 0, size);
      return;
    }
    device_->zero(place, size);
    device_->synchronize();
  }

 private:
  cuda::DeviceContext* device_;
  std::vector<std::unique_ptr<std::byte[]>> host_;
};

class Bench {
 public:
  Bench(Communicator& communicator, What what, DType dtype, Memory memory)
      : c_(communicator),
        what_(what),
        dtype_(dtype),
        values_(dtype, communicator.world_size()),
        memory_(std::move(memory)) {}

  Result<void> prepare(std::size_t most_bytes, bool owned) {
    const std::size_t world = static_cast<std::size_t>(c_.world_size());
    const std::size_t whole = most_bytes + world * 64, part = whole / world + 64;
    auto a = owned ? c_.allocate(whole) : memory_.allocate(whole);
    if (!a) return a.error();
    whole_ = *a;
    if (!has_parts()) return {};
    auto b = owned ? c_.allocate(part) : memory_.allocate(part);
    if (!b) return b.error();
    part_ = *b;
    return {};
  }

  Result<Row> measure(std::size_t size_bytes, int rounds, int warm_up) {
    const std::size_t element = size_of(dtype_), world = static_cast<std::size_t>(c_.world_size());
    std::size_t count = std::max<std::size_t>(size_bytes / element, 1);
    if (has_parts()) count = std::max<std::size_t>(count / world, 1) * world;
    Row row;
    row.count = count;
    row.size_bytes = count * element;
    auto wrong = check(count);
    if (!wrong) return wrong.error();
    row.wrong = *wrong;

    memory_.zero(whole_, count * element);  // zeros stay zeros, whatever is summed
    if (has_parts()) memory_.zero(part_, count / world * element);
    double total = 0, best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < warm_up; ++i) {
      Result<void> ok = run(count);
      if (!ok) return ok.error();
    }
    Result<void> together = c_.barrier();
    if (!together) return together.error();
    TimePoint before = SteadyClock::now();
    for (int i = 0; i < rounds; ++i) {
      Result<void> ok = run(count);
      if (!ok) return ok.error();
      const TimePoint after = SteadyClock::now();
      const double us = std::chrono::duration<double, std::micro>(after - before).count();
      before = after;
      total += us;
      best = std::min(best, us);
    }
    double times[] = {total / rounds, best};  // of the slowest rank
    Result<void> ok = c_.all_reduce(Block{times, 2, DType::f64}, Reduce::max).wait();
    if (!ok) return ok.error();
    row.mean_us = times[0];
    row.best_us = times[1];
    row.algbw = static_cast<double>(row.size_bytes) / times[0] * 1e-3;
    const double n = static_cast<double>(world);
    row.busbw = row.algbw * (what_ == What::all_reduce ? 2 * (n - 1) / n : has_parts() ? (n - 1) / n : 1);
    return row;
  }

 private:
  Result<void> run(std::size_t count) {
    const std::size_t part = count / static_cast<std::size_t>(c_.world_size());
    switch (what_) {
      case What::all_reduce:
        return c_.all_reduce(Block{whole_, count, dtype_}, Reduce::sum).wait();
      case What::all_gather:
        return c_.all_gather(Block{part_, part, dtype_}, Block{whole_, count, dtype_}).wait();
      case What::reduce_scatter:
        return c_.reduce_scatter(Block{whole_, count, dtype_}, Block{part_, part, dtype_}, Reduce::sum).wait();
      case What::broadcast:
        return c_.broadcast(Block{whole_, count, dtype_}, 0).wait();
    }
    return {};
  }

  bool has_parts() const { return what_ == What::all_gather || what_ == What::reduce_scatter; }

  // Element i of what this rank puts in, or of what must come out.
  int input(std::size_t i) const { return values_.of(c_.rank(), i); }
  int expected(std::size_t i, std::size_t part) const {
    switch (what_) {
      case What::all_reduce:
        return values_.sum(i);
      case What::all_gather:
        return values_.of(static_cast<int>(i / part), i % part);
      case What::reduce_scatter:
        return values_.sum(static_cast<std::size_t>(c_.rank()) * part + i);
      case What::broadcast:
        return values_.of(0, i);
    }
    return 0;
  }

  // In pieces: a tensor of 4 GiB must not need as much again.
  template <typename Do>
  void piecewise(std::size_t count, Do act) const {
    constexpr std::size_t kPiece = std::size_t{1} << 20;
    for (std::size_t at = 0; at < count; at += kPiece) act(at, std::min(kPiece, count - at));
  }
  void put_values(std::byte* to, std::size_t count) {
    const std::size_t element = size_of(dtype_);
    std::vector<std::byte> piece;
    piecewise(count, [&](std::size_t at, std::size_t n) {
      piece.resize(n * element);
      for (std::size_t i = 0; i < n; ++i) store(piece.data() + i * element, dtype_, input(at + i));
      memory_.write(to + at * element, piece);
    });
  }
  // Bits that are the answer nowhere (-1, or not a number): what is not written is wrong.
  void spoil(std::byte* to, std::size_t count) {
    const std::size_t element = size_of(dtype_);
    piecewise(count, [&](std::size_t at, std::size_t n) {
      memory_.write(to + at * element, std::vector<std::byte>(n * element, std::byte{0xff}));
    });
  }

  // One round with known values; how many elements of all ranks came out wrong.
  Result<std::int64_t> check(std::size_t count) {
    const std::size_t element = size_of(dtype_), part = count / static_cast<std::size_t>(c_.world_size());
    const bool gathers = what_ == What::all_gather, scatters = what_ == What::reduce_scatter;
    if (gathers) {
      put_values(part_, part);
      spoil(whole_, count);
    } else if (what_ == What::broadcast && c_.rank() != 0) {
      spoil(whole_, count);
    } else {
      put_values(whole_, count);
    }
    if (scatters) spoil(part_, part);
    Result<void> ok = run(count);
    if (!ok) return ok.error();
    std::int64_t wrong = 0;
    std::byte* const result = scatters ? part_ : whole_;
    piecewise(scatters ? part : count, [&](std::size_t at, std::size_t n) {
      const auto piece = memory_.read(result + at * element, n * element);
      for (std::size_t i = 0; i < n; ++i) {
        std::byte right[8];
        store(right, dtype_, expected(at + i, part));
        wrong += std::memcmp(piece.data() + i * element, right, element) != 0;
      }
    });
    ok = c_.all_reduce(Block{&wrong, 1, DType::i64}, Reduce::sum).wait();
    if (!ok) return ok.error();
    return wrong;
  }

  Communicator& c_;
  What what_;
  DType dtype_;
  Values values_;
  std::byte* whole_ = nullptr;
  std::byte* part_ = nullptr;
  Memory memory_;
};

int complain(const Error& error, int code) {
  std::fprintf(stderr, "trainer bench: %s\n", error.message().c_str());
  return code;
}

}  // namespace

int bench_main(std::span<const std::string> arguments) {
  const OptionTable table = option_table();
  auto options = table.parse(arguments, process_environment());
  if (!options) return complain(options.error(), exit_code::kUsage);
  if (trainer::print_if_asked(table, *options)) return exit_code::kOk;
  const auto& names = options->rest();
  const auto* chosen = std::find_if(std::begin(kCollectives), std::end(kCollectives),
                                    [&](const auto& c) { return names.size() == 1 && names[0] == c.name; });
  if (chosen == std::end(kCollectives)) {
    return complain(Error(Errc::invalid_argument,
                          fmt::format("name one collective: all-reduce, all-gather, reduce-scatter or broadcast (not "
                                      "\"{}\")",
                                      names.empty() ? "" : names.back())),
                    exit_code::kUsage);
  }
  DType dtype = DType::f32;
  for (DType d : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64}) {
    if (options->text("dtype") == name_of(d)) dtype = d;
  }
  auto sizes = sizes_of(*options, size_of(dtype));
  if (!sizes) return complain(sizes.error(), exit_code::kUsage);

  auto env = from_environment(process_environment());
  if (!env) return complain(env.error(), exit_code::kUsage);
  CommOptions comm_options;
  auto backend = parse_backend(options->text("backend"));
  if (!backend) return complain(backend.error(), exit_code::kUsage);
  comm_options.backend = *backend;
  comm_options.timeout = std::chrono::seconds(options->integer("timeout"));
  comm_options.progress = Progress::when_waited;
  auto communicator = make_communicator(*env, comm_options);
  if (!communicator) return complain(communicator.error(), exit_code::kFailure);
  Communicator& c = **communicator;

  cuda::DeviceContext* device = nullptr;
  if (c.device_memory()) {  // then the backend is loaded and its device open
    auto gpu = cuda::load_backend();
    if (!gpu) return complain(gpu.error(), exit_code::kFailure);
    auto opened = (*gpu)->open(static_cast<int>(env->rank.value), static_cast<int>(env->local_rank.value));
    if (!opened) return complain(opened.error(), exit_code::kFailure);
    device = *opened;
  }
  Bench bench(c, chosen->what, dtype, Memory(device));
  const bool owned = options->text("memory") == "owned", json = options->flag("json"), speaks = c.rank() == 0;
  Result<void> ready = bench.prepare(*std::max_element(sizes->begin(), sizes->end()), owned);
  if (!ready) return complain(ready.error(), exit_code::kFailure);
  if (speaks && !json) {
    fmt::print("# {} over {}, {} memory, {} rounds; time is the mean of the slowest rank\n", chosen->name,
               c.description(), options->text("memory"), options->integer("rounds"));
    fmt::print("# {:>12} {:>12} {:>6} {:>12} {:>12} {:>12} {:>12} {:>8}\n", "size (B)", "count", "type", "time (us)",
               "best (us)", "algbw (GB/s)", "busbw (GB/s)", "wrong");
    std::fflush(stdout);
  }
  std::string rows;
  std::int64_t wrong = 0;
  for (std::size_t size : *sizes) {
    auto row = bench.measure(size, static_cast<int>(options->integer("rounds")),
                             static_cast<int>(options->integer("warm-up")));
    if (!row) return complain(row.error(), exit_code::kFailure);
    wrong += row->wrong;
    if (!speaks) continue;
    if (json) {
      rows += fmt::format(
          "{}{{\"size_bytes\": {}, \"count\": {}, \"time_us\": {:.3f}, \"best_us\": {:.3f}, \"algbw_gb_s\": {:.4f}, "
          "\"busbw_gb_s\": {:.4f}, \"wrong\": {}}}",
          rows.empty() ? "" : ", ", row->size_bytes, row->count, row->mean_us, row->best_us, row->algbw, row->busbw,
          row->wrong);
    } else {
      fmt::print("  {:>12} {:>12} {:>6} {:>12.2f} {:>12.2f} {:>12.2f} {:>12.2f} {:>8}\n", row->size_bytes, row->count,
                 name_of(dtype), row->mean_us, row->best_us, row->algbw, row->busbw, row->wrong);
      std::fflush(stdout);
    }
  }
  if (speaks && json) {
    fmt::print(
        "{{\"collective\": \"{}\", \"communicator\": \"{}\", \"world_size\": {}, \"dtype\": \"{}\", \"memory\": "
        "\"{}\", \"rounds\": {}, \"rows\": [{}]}}\n",
        chosen->name, c.description(), c.world_size(), name_of(dtype), options->text("memory"),
        options->integer("rounds"), rows);
  }
  return wrong == 0 ? exit_code::kOk : exit_code::kFailure;
}

}  // namespace ddprun::comm
