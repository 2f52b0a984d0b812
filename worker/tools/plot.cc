#include "worker/tools/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "common/options.h"
#include "worker/base/file_bytes.h"
#include "worker/report/metrics.h"
#include "worker/report/svg.h"
#include "worker/tools/subcommand.h"

namespace ddprun::trainer {
namespace {

constexpr double kWidth = 800, kPanelHeight = 240, kLeft = 70, kRight = 20, kTop = 30, kBottom = 30;

// About five round numbers from low to high.
std::vector<double> ticks(double low, double high) {
  const double raw = (high - low) / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double step = raw / power < 1.5   ? power
                      : raw / power < 3.5 ? 2 * power
                      : raw / power < 7.5 ? 5 * power
                                          : 10 * power;
  std::vector<double> result;
  for (double t = std::ceil(low / step) * step; t <= high + step * 1e-9; t += step) {
    result.push_back(std::fabs(t) < step * 1e-9 ? 0 : t);
  }
  return result;
}

// Mean over a window of a fortieth of the curve.
std::vector<double> smoothed(const std::vector<double>& y) {
  const std::size_t half = std::max<std::size_t>(1, y.size() / 80);
  std::vector<double> out(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t from = i > half ? i - half : 0;
    const std::size_t to = std::min(y.size(), i + half + 1);
    double sum = 0;
    for (std::size_t k = from; k < to; ++k) sum += y[k];
    out[i] = sum / static_cast<double>(to - from);
  }
  return out;
}

struct Scale {
  double low, high, from, to;  // values low..high lie at pixels from..to
  double operator()(double v) const { return from + (v - low) / (high - low) * (to - from); }
};

// At most two points (lowest and highest) for each pixel column, so that files stay small.
std::string path_of(const std::vector<double>& x, const std::vector<double>& y, const Scale& sx, const Scale& sy) {
  std::string points;
  const std::size_t group = std::max<std::size_t>(1, x.size() / static_cast<std::size_t>(kWidth));
  for (std::size_t i = 0; i < x.size(); i += group) {
    const auto begin = y.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end = y.begin() + static_cast<std::ptrdiff_t>(std::min(i + group, x.size()));
    const auto [low, high] = std::minmax_element(begin, end);
    points += fmt::format("{:.1f},{:.1f} ", sx(x[i]), sy(*low));
    if (low != high) points += fmt::format("{:.1f},{:.1f} ", sx(x[i]), sy(*high));
  }
  return points;
}

std::string draw_panel(const Series& series, double top) {
  const auto [low_x, high_x] = std::minmax_element(series.x.begin(), series.x.end());
  auto [low_y, high_y] = std::minmax_element(series.y.begin(), series.y.end());
  double bottom = *low_y;
  double ceiling = *high_y;
  if (ceiling - bottom < 1e-12 * std::max(1.0, std::fabs(ceiling))) {
    bottom -= 0.5 * std::max(std::fabs(bottom), 1e-9);
    ceiling += 0.5 * std::max(std::fabs(ceiling), 1e-9);
  }
  const Scale sx{*low_x, *high_x > *low_x ? *high_x : *low_x + 1, kLeft, kWidth - kRight};
  const Scale sy{bottom, ceiling, top + kPanelHeight - kBottom, top + kTop};
  std::string svg =
      fmt::format("<text x='{}' y='{}' class='name'>{}</text>\n", kLeft, top + kTop - 10, escape_xml(series.name));
  for (const double t : ticks(sy.low, sy.high)) {
    svg += fmt::format(
        "<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' class='grid'/><text x='{}' y='{:.1f}' class='tick' "
        "text-anchor='end'>{:.4g}</text>\n",
        kLeft, kWidth - kRight, sy(t), sy(t), kLeft - 6, sy(t) + 4, t);
  }
  for (const double t : ticks(sx.low, sx.high)) {
    svg += fmt::format("<text x='{:.1f}' y='{}' class='tick' text-anchor='middle'>{:.6g}</text>\n", sx(t),
                       top + kPanelHeight - 10, t);
  }
  svg += fmt::format("<polyline class='raw' points='{}'/>\n", path_of(series.x, series.y, sx, sy));
  svg += fmt::format("<polyline class='mean' points='{}'/>\n", path_of(series.x, smoothed(series.y), sx, sy));
  return svg;
}

OptionTable make_table() {
  std::vector<OptionSpec> specs = {
      make_option("output", OptionKind::text, "run.svg", "FILE", "the picture (SVG: any browser shows it)")};
  specs[0].short_name = 'o';
  return OptionTable("trainer plot", "trainer plot metrics.jsonl [-o run.svg]", std::move(specs), RestPolicy::list);
}

Result<void> run(const ParsedOptions& options) {
  auto panels = read_metrics(options.rest()[0]);
  if (!panels) return std::move(panels).error();
  auto file = LineFile::open(options.text("output"), 0);
  if (!file) return std::move(file).error();
  auto written = file->append(draw_svg(options.rest()[0], *panels));
  if (!written) return written;
  const Series& loss = panels->front();
  std::printf("%zu steps, loss %.4f to %.4f: %s\n", loss.x.size(), loss.y.front(), loss.y.back(),
              options.text("output").c_str());
  return {};
}

}  // namespace

std::string draw_svg(const std::string& title, const std::vector<Series>& panels) {
  const double height = 40 + kPanelHeight * static_cast<double>(panels.size());
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' "
      "font-family='sans-serif'>\n"
      "<style>.grid{{stroke:#ddd}}.tick{{font-size:11px;fill:#555}}.name{{font-size:14px;font-weight:bold}}"
      ".raw{{fill:none;stroke:#9bc;stroke-width:1}}.mean{{fill:none;stroke:#036;stroke-width:2}}</style>\n"
      "<rect width='{0}' height='{1}' fill='white'/>\n<text x='{2}' y='24' font-size='16'>{3}</text>\n",
      kWidth, height, kLeft, escape_xml(title));
  for (std::size_t i = 0; i < panels.size(); ++i)
    svg += draw_panel(panels[i], 40 + kPanelHeight * static_cast<double>(i));
  return svg + "</svg>\n";
}

Result<std::vector<Series>> read_metrics(const std::string& path) {
  auto bytes = read_file(path, std::size_t{8} << 30);
  if (!bytes) return std::move(bytes).error();
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  std::vector<Series> all = {
      {"loss", {}, {}}, {"lr", {}, {}}, {"grad_norm", {}, {}}, {"samples_per_s", {}, {}}, {"scale", {}, {}}};
  std::map<std::string, Series> validation;  // by figure
  std::size_t at = 0;
  for (std::int64_t line = 1; at < text.size(); ++line) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) break;  // a line that a running job has not finished
    const auto json = nlohmann::json::parse(text.substr(at, end - at), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number()) {
      return Error(Errc::malformed, fmt::format("{}:{}: not a JSON object with a step", path, line));
    }
    for (Series& series : all) {
      if (!json.contains(series.name) || !json[series.name].is_number()) continue;
      series.x.push_back(json["step"].get<double>());
      series.y.push_back(json[series.name].get<double>());
    }
    if (const auto found = json.find("validation"); found != json.end() && found->is_object()) {
      for (const auto& [name, value] : found->items()) {
        if (name == "samples" || !value.is_number()) continue;
        Series& series = validation[name];
        series.name = "validation " + name;
        series.x.push_back(json["step"].get<double>());
        series.y.push_back(value.get<double>());
      }
    }
    at = end + 1;
  }
  std::size_t place = 1;  // behind the loss
  for (auto& [name, series] : validation) {
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(place++), std::move(series));
  }
  if (all[0].x.empty()) return Error(Errc::malformed, path + ": has no loss");
  std::erase_if(all, [](const Series& s) {
    const bool constant = std::all_of(s.y.begin(), s.y.end(), [&s](double v) { return v == s.y.front(); });
    return s.y.empty() || (s.name == "scale" && constant);
  });
  return all;
}

int plot(std::span<const std::string> arguments) {
  const auto misuse = [](const ParsedOptions& options) -> std::string {
    return options.rest().size() == 1 ? "" : "needs one metrics file (see --help)";
  };
  return run_subcommand("plot", make_table(), arguments, misuse, run);
}

}  // namespace ddprun::trainer
