#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
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

// Never fails: a worker may have died while it wrote. What stands before the place where the text ends or goes wrong
// counts. Memory: that of the text, whatever its depth.
ErrorFile parse_error_file(const std::string& json);

// What the worker wrote there, made to fit into kMaxErrorFileBytes: a longer or deeper one is written anew with its
// message, the end of its call stack and its time. "" = nothing that can be used.
inline constexpr std::size_t kMaxErrorFileBytes = 30 << 10;  // the rendezvous passes on 32 KiB
std::string read_error_file(const std::string& path);
std::string fit_error_file(std::string json);

// As a value for a report. What lies deeper than 16 levels or comes after 4096 values is left out; null = no JSON.
// (A dump of a deep value is recursive, and indents each line by its depth: a megabyte of brackets would become
// gigabytes.)
nlohmann::json error_file_value(const std::string& json);

}  // namespace ddprun::launcher
