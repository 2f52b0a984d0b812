#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "worker/base/file_bytes.h"
#include "worker/data/formats.h"
#include "worker/data/memory_dataset.h"

namespace ddprun::data {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// What starts like a number, or is one that is not finite, is meant as one: no heading.
bool is_heading(std::string_view cell) {
  cell = trim(cell);
  if (cell.empty()) return true;
  if (std::string_view("+-.0123456789").find(cell.front()) != std::string_view::npos) return false;
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  return error != std::errc() || end != cell.data() + cell.size();
}

bool parse_number(std::string_view text, double& value) {
  text = trim(text);
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> cells;
  for (;;) {
    const std::size_t comma = line.find(',');
    cells.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_csv(const DatasetOptions& options) {
  const std::string& path = options.paths.inputs;
  auto bytes = read_file(path, std::size_t{16} << 30);
  if (!bytes) return std::move(bytes).error();
  std::string_view rest(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf";  // as spreadsheets put in front
  if (rest.starts_with(kUtf8Mark)) rest.remove_prefix(kUtf8Mark.size());
  if (rest.starts_with("\xff\xfe") || rest.starts_with("\xfe\xff")) {
    return Error(Errc::malformed, path + ": is UTF-16 text; save it as UTF-8 or ASCII");
  }
  MemorySamples samples;
  samples.input_name = samples.target_name = path;
  samples.rows_are_lines = true;
  std::size_t columns = 0;
  for (std::int64_t line_number = 1; !rest.empty(); ++line_number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = trim(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.empty()) continue;
    const std::vector<std::string_view> cells = split(line);
    if (columns == 0) {
      if (line_number == 1 && is_heading(cells[0])) continue;
      columns = cells.size();
      if (columns < 2) {
        return Error(Errc::malformed,
                     fmt::format("{}:{}: one number only; a row is inputs, then the target", path, line_number));
      }
    }
    if (cells.size() != columns) {
      return Error(Errc::malformed, fmt::format("{}:{}: {} numbers where the first row has {}", path, line_number,
                                                cells.size(), columns));
    }
    for (std::size_t c = 0; c < columns; ++c) {
      double value = 0;
      if (!parse_number(cells[c], value)) {
        return Error(Errc::malformed, fmt::format("{}:{}: column {}: '{}' is not a number", path, line_number, c + 1,
                                                  std::string(trim(cells[c]).substr(0, 40))));
      }
      if (c + 1 < columns) {
        samples.float_inputs.push_back(static_cast<float>(value));
      } else {
        samples.targets.push_back(value);
      }
    }
    samples.lines.push_back(line_number);
    ++samples.count;
  }
  samples.input_shape = {static_cast<std::int64_t>(columns) - 1};
  if (options.target == TargetKind::values) samples.target_shape = {1};
  return make_memory_dataset(std::move(samples), options);
}

}  // namespace ddprun::data
