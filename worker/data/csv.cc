#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include "worker/base/file_bytes.h"
#include "worker/data/csv_table.h"
#include "worker/data/formats.h"
#include "worker/data/memory_dataset.h"

namespace ddprun::data {
namespace {

bool parse_number(std::string_view text, double& value) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

// What starts like a number, or is one that is not finite, is meant as one: no heading.
bool is_heading(std::string_view cell) {
  if (cell.empty()) return true;
  if (std::string_view("+-.0123456789").find(cell.front()) != std::string_view::npos) return false;
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  return error != std::errc() || end != cell.data() + cell.size();
}

// Reads the rows of one file after the other into one table.
class CsvReader {
 public:
  CsvReader(const DatasetOptions& options, MemorySamples& samples) : options_(options), samples_(samples) {}

  Result<void> read(const std::string& path);
  // Words as targets become numbers: their places in the sorted list of classes.
  Result<void> name_classes();
  std::size_t input_count() const { return choice_.inputs.size(); }

 private:
  Result<void> begin(const std::string& place, std::size_t columns);
  Result<void> row(const std::string& place, const std::vector<std::string_view>& cells);
  bool named_columns() const { return !options_.target_column.empty() || !options_.columns.empty(); }
  std::string column_name(std::size_t column) const {
    const bool named = column < heading_.size() && !heading_[column].empty();
    return fmt::format("column {}{}", column + 1, named ? " (" + heading_[column] + ")" : "");
  }

  const DatasetOptions& options_;
  MemorySamples& samples_;
  std::vector<std::string> heading_;
  std::size_t columns_ = 0;  // 0: no row yet
  ColumnChoice choice_;
  bool has_target_ = true, words_ = false;
  std::vector<std::string> labels_;  // of each row, if they are words
};

Result<void> CsvReader::read(const std::string& path) {
  auto bytes = read_file(path, std::size_t{16} << 30);
  if (!bytes) return std::move(bytes).error();
  std::string_view rest(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf";  // as spreadsheets put in front
  if (rest.starts_with(kUtf8Mark)) rest.remove_prefix(kUtf8Mark.size());
  if (rest.starts_with("\xff\xfe") || rest.starts_with("\xfe\xff")) {
    return Error(Errc::malformed, path + ": is UTF-16 text; save it as UTF-8 or ASCII");
  }
  samples_.files.push_back({path, samples_.count});
  std::vector<std::string_view> cells;
  std::vector<std::string> unquoted;
  for (std::int64_t line_number = 1; !rest.empty(); ++line_number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = trim_cell(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.empty()) continue;
    const auto place = [&] { return fmt::format("{}:{}", path, line_number); };
    auto split = split_cells(line, cells, unquoted);
    if (!split) return std::move(split).error().with_context(place());
    if (line_number == 1 && is_heading(cells[0])) {
      std::vector<std::string> heading(cells.begin(), cells.end());
      if (columns_ > 0 && named_columns() && heading != heading_) {
        return Error(Errc::malformed, place() + ": other columns than the first file has");
      }
      if (columns_ == 0) heading_ = std::move(heading);
      continue;
    }
    if (columns_ == 0) {
      auto begun = begin(place(), cells.size());
      if (!begun) return begun;
    }
    if (cells.size() != columns_) {
      return Error(Errc::malformed,
                   fmt::format("{}: {} numbers where the first row has {}", place(), cells.size(), columns_));
    }
    auto taken = row(place(), cells);
    if (!taken) return taken;
    samples_.lines.push_back(line_number);
    ++samples_.count;
  }
  return {};
}

Result<void> CsvReader::begin(const std::string& place, std::size_t columns) {
  columns_ = columns;
  has_target_ = !options_.unlabeled || static_cast<std::int64_t>(columns) > options_.inputs;
  if (columns_ < 2 && has_target_) {
    return Error(Errc::malformed, place + ": one number only; a row is inputs, then the target");
  }
  // Inputs for answers lack the target's column: all that is there is an input.
  const bool bare = options_.unlabeled && static_cast<std::int64_t>(columns) == options_.inputs;
  auto choice = bare ? choose_columns(heading_, columns + 1, {}, "")
                     : choose_columns(heading_, columns, options_.columns, options_.target_column);
  if (!choice) return std::move(choice).error().with_context(place);
  choice_ = std::move(*choice);
  if (options_.unlabeled && static_cast<std::int64_t>(choice_.inputs.size()) != options_.inputs) {
    return Error(Errc::invalid_argument,
                 fmt::format("{}: {} columns, the model takes {} inputs", place, columns, options_.inputs));
  }
  return {};
}

Result<void> CsvReader::row(const std::string& place, const std::vector<std::string_view>& cells) {
  const auto no_number = [&](std::size_t column) {
    const std::string hint =
        options_.columns.empty() && samples_.count == 0 ? "; data.columns chooses the columns that are inputs" : "";
    return Error(Errc::malformed, fmt::format("{}: {}: '{}' is not a number{}", place, column_name(column),
                                              std::string(cells[column].substr(0, 40)), hint));
  };
  for (const std::size_t column : choice_.inputs) {
    double value = 0;
    if (!parse_number(cells[column], value)) return no_number(column);
    samples_.float_inputs.push_back(static_cast<float>(value));
  }
  double target = 0;
  if (options_.unlabeled) {
    samples_.targets.push_back(target);
    return {};
  }
  const std::string_view cell = cells[choice_.target];
  const bool number = parse_number(cell, target);
  if (samples_.count == 0)
    words_ = !number && options_.target == TargetKind::classes && is_heading(cell) && !cell.empty();
  if (words_) {
    labels_.emplace_back(cell);
    samples_.targets.push_back(0);
    return {};
  }
  if (!number) return no_number(choice_.target);
  samples_.targets.push_back(target);
  return {};
}

Result<void> CsvReader::name_classes() {
  if (!words_) return {};
  const std::set<std::string> found(labels_.begin(), labels_.end());
  samples_.class_names = options_.class_names;
  if (samples_.class_names.empty()) samples_.class_names.assign(found.begin(), found.end());
  const auto& names = samples_.class_names;
  for (std::size_t i = 0; i < labels_.size(); ++i) {
    const auto at = std::lower_bound(names.begin(), names.end(), labels_[i]);
    if (at == names.end() || *at != labels_[i]) {
      return Error(Errc::invalid_argument, fmt::format("{}: class '{}' is not among those of data.train: {}",
                                                       samples_.row_name(i), labels_[i], fmt::join(names, ", ")));
    }
    samples_.targets[i] = static_cast<double>(at - names.begin());
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_csv(const DatasetOptions& options) {
  MemorySamples samples;
  samples.input_name = samples.target_name = options.paths.inputs;
  samples.rows_are_lines = true;
  CsvReader reader(options, samples);
  auto done = reader.read(options.paths.inputs);
  for (const std::string& path : options.paths.more) {
    if (done) done = reader.read(path);
  }
  if (done) done = reader.name_classes();
  if (!done) return std::move(done).error();
  samples.input_shape = {static_cast<std::int64_t>(reader.input_count())};
  if (options.target == TargetKind::values) samples.target_shape = {1};
  return make_memory_dataset(std::move(samples), options);
}

}  // namespace ddprun::data
