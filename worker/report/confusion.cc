#include "worker/report/confusion.h"

#include <fmt/format.h>

#include <algorithm>

#include "worker/report/metrics.h"
#include "worker/report/svg.h"

namespace ddprun::trainer {
namespace {

constexpr double kLeft = 130, kTop = 90;

// Quoted where a comma or a quote would be taken for csv's own.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

std::vector<std::string> class_names_of(const std::vector<std::string>& names, std::int64_t classes) {
  std::vector<std::string> all = names;
  for (auto i = static_cast<std::int64_t>(all.size()); i < classes; ++i) all.push_back(std::to_string(i));
  return all;
}

std::string confusion_csv(const ConfusionMatrix& matrix) {
  std::string text = "target";
  for (const std::string& name : matrix.classes) text += "," + csv_cell(name);
  for (std::size_t row = 0; row < matrix.classes.size(); ++row) {
    text += "\n" + csv_cell(matrix.classes[row]);
    for (std::size_t column = 0; column < matrix.classes.size(); ++column) {
      text += fmt::format(",{:.0f}", matrix.at(row, column));
    }
  }
  return text + "\n";
}

std::string confusion_svg(const ConfusionMatrix& matrix) {
  const std::size_t n = matrix.classes.size();
  const double cell = std::clamp(600.0 / static_cast<double>(std::max<std::size_t>(n, 1)), 4.0, 40.0);
  const bool with_text = cell >= 14;
  const double size = cell * static_cast<double>(n);
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' font-family='sans-serif' "
      "font-size='11'>\n<rect width='{0}' height='{1}' fill='white'/>\n"
      "<text x='{2}' y='18' font-size='14'>answers (columns) for each target (rows)</text>\n",
      kLeft + size + 20, kTop + size + 20, kLeft);
  for (std::size_t row = 0; row < n; ++row) {
    double sum = 0;
    for (std::size_t column = 0; column < n; ++column) sum += matrix.at(row, column);
    const double y = kTop + cell * static_cast<double>(row);
    for (std::size_t column = 0; column < n; ++column) {
      const double count = matrix.at(row, column);
      const double share = sum > 0 ? count / sum : 0;
      const double x = kLeft + cell * static_cast<double>(column);
      svg += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='rgb({},{},{})'/>\n", x, y,
                         cell, cell, static_cast<int>(255 - 245 * share), static_cast<int>(255 - 190 * share), 255);
      if (with_text && count > 0) {
        svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle' fill='{}'>{:.0f}</text>\n", x + cell / 2,
                           y + cell / 2 + 4, share > 0.5 ? "white" : "black", count);
      }
    }
    if (!with_text) continue;
    const std::string name = escape_xml(matrix.classes[row].substr(0, 20));
    svg += fmt::format("<text x='{}' y='{:.1f}' text-anchor='end'>{}</text>\n", kLeft - 6, y + cell / 2 + 4, name);
    const double x = kLeft + cell * (static_cast<double>(row) + 0.5) + 4;
    svg += fmt::format("<text transform='translate({:.1f},{}) rotate(-60)'>{}</text>\n", x, kTop - 6, name);
  }
  return svg + "</svg>\n";
}

Result<void> write_confusion_files(const std::string& folder, const ConfusionMatrix& matrix) {
  for (const auto& [name, text] : {std::pair<const char*, std::string>{"confusion.csv", confusion_csv(matrix)},
                                   std::pair<const char*, std::string>{"confusion.svg", confusion_svg(matrix)}}) {
    auto file = LineFile::open(folder + "/" + name, 0);
    if (!file) return std::move(file).error();
    auto written = file->append(text);
    if (!written) return written;
  }
  return {};
}

}  // namespace ddprun::trainer
