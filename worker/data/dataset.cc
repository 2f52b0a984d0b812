#include "worker/data/dataset.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <new>
#include <numeric>

#include "worker/data/formats.h"
#include "worker/data/views.h"

namespace ddprun::data {
namespace {
std::int64_t product(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}
}  // namespace

std::int64_t SampleSpec::input_count() const { return product(input_shape); }
std::int64_t SampleSpec::target_count() const { return product(target_shape); }

static Result<std::unique_ptr<Dataset>> open_token_files(DatasetOptions options) {
  std::vector<std::unique_ptr<Dataset>> parts;
  std::vector<std::string> paths = std::move(options.paths.more);
  paths.insert(paths.begin(), options.paths.inputs);
  options.paths.more.clear();
  for (const std::string& path : paths) {
    options.paths.inputs = path;
    auto part = open_tokens(options);
    if (!part) return part;
    parts.push_back(std::move(*part));
  }
  return concat(std::move(parts));
}

static Result<std::unique_ptr<Dataset>> open_format(const DatasetOptions& options) {
  if (options.format == "csv") return open_csv(options);
  if (options.format == "idx") return open_idx(options);
  if (options.format == "npy") return open_npy(options);
  if (options.format == "image_folder") return open_image_folder(options);
  if (options.format == "cifar") return open_cifar(options);
  if (options.format == "tokens") return open_token_files(options);
  if (options.format == "synthetic") return open_synthetic(options);
  return Error(Errc::invalid_argument, fmt::format("data.format: '{}' is not known", options.format));
}

Result<std::unique_ptr<Dataset>> open_dataset(const DatasetOptions& options) {
  try {
    return open_format(options);
  } catch (const std::bad_alloc&) {
    return Error(Errc::system, options.paths.inputs + ": no memory to hold these data");
  } catch (const std::filesystem::filesystem_error& e) {
    return Error(Errc::system, e.what());
  }
}

}  // namespace ddprun::data
