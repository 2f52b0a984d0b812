#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace ddprun::launcher {

// torch's error file, as torch 2.15's @record writes it:
//   {"message": {"message": "ValueError: text", "extraInfo": {"py_callstack": text, "timestamp": "1764443500"}}}
// Also taken: "message" as plain text, "timestamp" as a number or at the top.
struct ErrorFile {
  std::string message;    // "" = no file, or one that cannot be read
  std::string callstack;  // "" = none
  std::optional<std::chrono::seconds> unix_time;
};

// Never fails: a worker may have died while it wrote.
ErrorFile parse_error_file(const std::string& json);

}  // namespace ddprun::launcher
