#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace ddprun::trainer {

// How often each class (rows) was taken for each (columns).
struct ConfusionMatrix {
  std::vector<std::string> classes;
  std::vector<double> counts;  // classes x classes; whole numbers

  double at(std::size_t target, std::size_t answer) const { return counts[target * classes.size() + answer]; }
};

// The names that the data have, or "0", "1", ...
std::vector<std::string> class_names_of(const std::vector<std::string>& names, std::int64_t classes);

std::string confusion_csv(const ConfusionMatrix& matrix);  // a heading of class names, a row for each target
std::string confusion_svg(const ConfusionMatrix& matrix);  // shades are shares of a row
// confusion.csv and confusion.svg in `folder`, which is made. Errors: a file cannot be written.
Result<void> write_confusion_files(const std::string& folder, const ConfusionMatrix& matrix);

}  // namespace ddprun::trainer
