#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

// Text of a csv file as rows of cells: RFC 4180 without line breaks inside of quotes.
namespace ddprun::data {

std::string_view trim_cell(std::string_view text);

// Cells of one line, without their quotes; "" inside of quotes is a quote. Views into `line` or into `unquoted`.
// Errors: malformed, a quote that is not closed.
Result<void> split_cells(std::string_view line, std::vector<std::string_view>& cells,
                         std::vector<std::string>& unquoted);

// Which columns of a table are inputs, and which is the target.
struct ColumnChoice {
  std::vector<std::size_t> inputs;
  std::size_t target = 0;
};

// columns, target: names of the heading, or numbers from 1; empty: all others, the last one. Errors: invalid_argument
// naming the column and those that there are.
Result<ColumnChoice> choose_columns(const std::vector<std::string>& heading, std::size_t count,
                                    const std::vector<std::string>& columns, const std::string& target);

}  // namespace ddprun::data
