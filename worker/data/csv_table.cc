#include "worker/data/csv_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "common/options.h"

namespace ddprun::data {

std::string_view trim_cell(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

Result<void> split_cells(std::string_view line, std::vector<std::string_view>& cells,
                         std::vector<std::string>& unquoted) {
  cells.clear();
  unquoted.clear();
  if (line.find('"') == std::string_view::npos) {
    for (;;) {
      const std::size_t comma = line.find(',');
      cells.push_back(trim_cell(line.substr(0, comma)));
      if (comma == std::string_view::npos) return {};
      line.remove_prefix(comma + 1);
    }
  }
  std::string cell;
  bool quoted = false, was_quoted = false;
  const auto end_cell = [&] {
    unquoted.push_back(was_quoted ? cell : std::string(trim_cell(cell)));
    cell.clear();
    was_quoted = false;
  };
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"') {
        cell.push_back(c);
      } else if (i + 1 < line.size() && line[i + 1] == '"') {
        cell.push_back('"');
        ++i;
      } else {
        quoted = false;
      }
    } else if (c == ',') {
      end_cell();
    } else if (c == '"' && trim_cell(cell).empty()) {
      cell.clear();
      quoted = was_quoted = true;
    } else if (!was_quoted || trim_cell(std::string_view(&c, 1)).size() == 1) {
      cell.push_back(c);
    }
  }
  if (quoted) return Error(Errc::malformed, "a quote is not closed in this line");
  end_cell();
  cells.assign(unquoted.begin(), unquoted.end());
  return {};
}

Result<ColumnChoice> choose_columns(const std::vector<std::string>& heading, std::size_t count,
                                    const std::vector<std::string>& columns, const std::string& target) {
  const auto find = [&](const std::string& name) -> Result<std::size_t> {
    const auto named = std::find(heading.begin(), heading.end(), name);
    if (named != heading.end()) return static_cast<std::size_t>(named - heading.begin());
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size() && number >= 1 && number <= count) return number - 1;
    if (heading.empty()) {
      return Error(
          Errc::invalid_argument,
          fmt::format("there is no column '{}': the file has no heading, and its {} columns are called 1 to {}", name,
                      count, count));
    }
    const auto near = nearest_name(name, heading);
    return Error(Errc::invalid_argument,
                 fmt::format("there is no column '{}'{}; there are: {}", name,
                             near ? ": did you mean '" + *near + "'?" : "", fmt::join(heading, ", ")));
  };
  ColumnChoice choice;
  choice.target = count - 1;
  if (!target.empty()) {
    auto found = find(target);
    if (!found) return std::move(found).error().with_context("data.target");
    choice.target = *found;
  }
  for (const std::string& name : columns) {
    auto found = find(name);
    if (!found) return std::move(found).error().with_context("data.columns");
    if (*found == choice.target) {
      return Error(
          Errc::invalid_argument,
          fmt::format("data.columns: '{}' is the target (data.target): a model would only have to copy it", name));
    }
    choice.inputs.push_back(*found);
  }
  for (std::size_t c = 0; columns.empty() && c < count; ++c) {
    if (c != choice.target) choice.inputs.push_back(c);
  }
  return choice;
}

}  // namespace ddprun::data
