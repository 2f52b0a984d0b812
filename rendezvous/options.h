#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/log.h"
#include "common/options.h"
#include "common/result.h"

namespace ddprun::rendezvous {

// What the daemon was asked to do: --config FILE, then flags over it.
struct RendezvousOptions {
  std::string address;  // numeric; "" = all addresses
  std::uint16_t port = 29400;
  std::optional<std::uint16_t> metrics_port;  // 0 = the kernel chooses
  std::string metrics_address = "127.0.0.1";  // "" = all addresses
  std::string token;                          // the text of --token-file
  std::string state_file;                     // "" = none
  std::size_t max_store_bytes = std::size_t{4} << 30;
  std::size_t max_connections = 0;  // 0 = as many as descriptors allow, less some for agents
  LogLevel log_level = LogLevel::info;
};

const OptionTable& rendezvous_option_table();

// Errors: invalid_argument naming flag or file:line; not_found for files.
Result<RendezvousOptions> make_rendezvous_options(const ParsedOptions& parsed);

}  // namespace ddprun::rendezvous
