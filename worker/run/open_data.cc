#include "worker/run/open_data.h"

#include <fmt/format.h>

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "worker/data/views.h"

namespace ddprun::trainer {
namespace {

// Patterns become the files that they match, in the order of their names.
Result<data::DataPaths> expand(const data::DataPaths& paths) {
  std::vector<std::string> files;
  std::vector<std::string> given = paths.more;
  given.insert(given.begin(), paths.inputs);
  for (const std::string& path : given) {
    struct stat info = {};
    if (path.find_first_of("*?[") == std::string::npos || ::stat(path.c_str(), &info) == 0) {
      files.push_back(path);
      continue;
    }
    glob_t found = {};
    const int failed = ::glob(path.c_str(), 0, nullptr, &found);
    if (failed == 0) files.insert(files.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (failed != 0) return Error(Errc::not_found, path + ": no file matches this pattern");
  }
  data::DataPaths all{files.front(), paths.targets};
  all.more.assign(files.begin() + 1, files.end());
  return all;
}

// class_names: of data.train, for data.validation.
Result<std::unique_ptr<data::Dataset>> open_part(const TrainerConfig& config, bool training,
                                                 const std::vector<std::string>& class_names = {}) {
  data::DatasetOptions options = dataset_options(config, training);
  auto paths = expand(options.paths);
  if (!paths) return std::move(paths).error();
  options.paths = std::move(*paths);
  options.class_names = class_names;
  auto dataset = data::open_dataset(options);
  if (!dataset || config.data.validation_share == 0) return dataset;
  auto part = data::split_off(std::move(*dataset), config.data.validation_share, config.train.seed, !training);
  return part;
}

// What the model takes from the data: features, channels, image size, classes.
Result<void> fit_model(TrainerConfig& config, const data::SampleSpec& spec) {
  engine::ModelConfig& model = config.model;
  const bool image_model = model.name.rfind("resnet", 0) == 0;
  const bool token_model = model.name == "gpt2";
  if (token_model != (spec.input_type == data::ElementType::i32)) {
    return Error(Errc::invalid_argument, fmt::format("model {} does not fit data.format {}: one has tokens, the other "
                                                     "numbers",
                                                     model.name, config.data.format));
  }
  if (token_model) {
    model.gpt2.sequence_length = config.data.sequence_length;
    return {};
  }
  if (image_model) {
    if (spec.input_shape.size() != 3 || spec.input_shape[0] != spec.input_shape[1]) {
      return Error(Errc::invalid_argument,
                   fmt::format("model {} needs square images (height x width x channels)", model.name));
    }
    model.image_size = spec.input_shape[0];
    model.channels = spec.input_shape[2];
  } else {
    model.inputs = spec.input_count();
  }
  if (config.loss.kind == engine::LossKind::mse) {
    if (!config.outputs_given) model.outputs = spec.target_count();
    if (model.outputs != spec.target_count()) {
      return Error(Errc::invalid_argument, fmt::format("model.outputs is {}, but the data have {} target(s) a sample",
                                                       model.outputs, spec.target_count()));
    }
  } else if (spec.target_count() != 1) {
    return Error(Errc::invalid_argument,
                 fmt::format("cross_entropy needs one class a sample, the data have {}", spec.target_count()));
  } else if (!config.outputs_given) {
    model.outputs = spec.classes;
  }
  return {};
}

// A class that one side lacks would shift the numbers of all classes after it, without a word.
Result<void> same_classes(const TrainerConfig& config, const data::SampleSpec& train,
                          const data::SampleSpec& validation) {
  const auto& a = train.class_names;
  const auto& b = validation.class_names;
  const auto [in_train, in_validation] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_train == a.end() && in_validation == b.end()) return {};
  // Both are sorted: the smaller name is the one that the other side lacks.
  const bool train_has = in_validation == b.end() || (in_train != a.end() && *in_train < *in_validation);
  const std::string& name = train_has ? *in_train : *in_validation;
  const std::string& with = train_has ? config.data.train.inputs : config.data.validation.inputs;
  const std::string& without = train_has ? config.data.validation.inputs : config.data.train.inputs;
  return Error(Errc::invalid_argument,
               fmt::format("data.validation: class folder '{}' is in {} but not in {}: all classes after it would have "
                           "other numbers. Both need the same folders",
                           name, with, without));
}

Result<void> alike(const TrainerConfig& config, const data::SampleSpec& train, const data::SampleSpec& validation) {
  const auto text = [](const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); };
  if (train.input_shape != validation.input_shape) {
    return Error(Errc::invalid_argument,
                 fmt::format("data.validation: {} has inputs of shape {} a sample, data.train has {}",
                             config.data.validation.inputs, text(validation.input_shape), text(train.input_shape)));
  }
  if (train.target_shape != validation.target_shape) {
    return Error(Errc::invalid_argument,
                 fmt::format("data.validation: its targets have shape {} a sample, those of data.train {}",
                             text(validation.target_shape), text(train.target_shape)));
  }
  auto same = same_classes(config, train, validation);
  if (!same) return same;
  if (validation.classes > train.classes && !config.outputs_given) {
    return Error(Errc::invalid_argument,
                 fmt::format("data.validation: it has class {}, the classes of data.train end at {}. Set model.classes "
                             "if that is right",
                             validation.classes - 1, train.classes - 1));
  }
  return {};
}

}  // namespace

data::DatasetOptions dataset_options(const TrainerConfig& config, bool training) {
  data::DatasetOptions options;
  options.format = config.data.format;
  const bool of_train = training || config.data.validation_share > 0;
  options.paths = of_train ? config.data.train : config.data.validation;
  options.target_column = config.data.csv.target;
  options.columns = config.data.csv.columns;
  options.target = config.loss.kind == engine::LossKind::mse ? data::TargetKind::values : data::TargetKind::classes;
  if (config.model.name == "gpt2") {
    options.classes = config.model.gpt2.vocabulary;
  } else if (config.outputs_given) {
    options.classes = config.model.outputs;
  }
  options.ignore_index = config.loss.ignore_index;
  options.training = training;
  options.mean = config.data.transform.mean;
  options.std = config.data.transform.std;
  options.crop = config.data.transform.crop;
  options.flip = config.data.transform.flip;
  options.image_size = config.data.transform.image_size;
  options.sequence_length = config.data.sequence_length;
  options.synthetic_samples = config.data.samples;
  options.synthetic_shape = config.data.sample_shape;
  if (options.synthetic_shape.empty() && config.model.name.rfind("resnet", 0) == 0) {
    options.synthetic_shape = {config.data.transform.image_size, config.data.transform.image_size, 3};
  } else if (options.synthetic_shape.empty() && config.model.name != "gpt2") {
    options.synthetic_shape = {784};
  }
  return options;
}

Result<OpenedData> open_data(TrainerConfig& config) {
  OpenedData data;
  auto train = open_part(config, true);
  if (!train) return std::move(train).error().with_context("data.train");
  data.train = std::move(*train);
  if (config.data.has_validation()) {
    auto validation = open_part(config, false, data.train->spec().class_names);
    if (!validation) return std::move(validation).error().with_context("data.validation");
    data.validation = std::move(*validation);
  }
  auto fits = fit_model(config, data.train->spec());
  if (fits && data.validation != nullptr) fits = alike(config, data.train->spec(), data.validation->spec());
  if (!fits) return std::move(fits).error();
  for (const std::string& line : data.train->left_out()) config.warnings.push_back("data.train: " + line);
  if (data.validation != nullptr) {
    for (const std::string& line : data.validation->left_out()) config.warnings.push_back("data.validation: " + line);
  }
  return data;
}

}  // namespace ddprun::trainer
