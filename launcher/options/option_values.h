#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"

// Texts of options -> values. Pure. Errors say what is wrong with the text; the caller puts the option's name in front.
namespace ddprun::launcher {

// "a,b,,c" -> {"a", "b", "", "c"}; "" -> {}.
std::vector<std::string> split(std::string_view text, char separator);
std::string trimmed(std::string_view text);

// torchrun's filter lists: commas separate, ",," is a comma inside an item.
std::vector<std::string> split_escaped_commas(std::string_view text);

// How many entries of a list of devices are MIG instances ("MIG-..."); CUDA shows a process only one of them.
std::int64_t mig_instances(const std::vector<std::string>& devices);

// Whole text as a number in [min, max].
Result<std::int64_t> parse_integer(std::string_view text, std::int64_t min, std::int64_t max);

// "64K", "4G", "1048576", factor 1024; no sign, no fraction.
Result<std::uint64_t> parse_size(std::string_view text);

// "0.5", "3" seconds, not negative, at most a year.
Result<std::chrono::milliseconds> parse_seconds(std::string_view text);

// "20000-60000" or "20000:60000", 1..65535, first <= last.
Result<std::pair<std::uint16_t, std::uint16_t>> parse_port_range(std::string_view text);

// "address-space=4G,nofile=1024" -> RLIMIT_* numbers and values; "unlimited" is RLIM_INFINITY.
Result<std::vector<std::pair<int, std::uint64_t>>> parse_limits(std::string_view text);
std::string limit_name(int resource);

}  // namespace ddprun::launcher
