#pragma once

#include <string>
#include <vector>

#include "common/failure_record.h"

// From a failed worker's last words to a sentence that helps. Pure.
namespace ddprun::launcher {

// The last of `lines` that names an error ("ValueError: ...", "Segmentation fault", "x: command not found"); "" = none.
std::string find_error_line(const std::vector<std::string>& lines);

// `python`: the interpreter that ran it; "" = none.
std::string find_remedy(const FailureRecord& failure, const std::string& python);

}  // namespace ddprun::launcher
