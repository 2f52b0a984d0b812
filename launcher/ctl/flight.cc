#include "launcher/ctl/flight.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "common/flight_recorder.h"
#include "common/printable.h"

namespace ddprun::launcher {

std::string flight_text(std::span<const rdzv::FlightPart> parts, std::size_t last) {
  std::vector<FlightLog> all;
  std::string tables;
  for (const rdzv::FlightPart& part : parts) {
    tables += fmt::format("node {} ({})", part.group_rank, printable(part.host));
    if (part.bytes.empty()) {
      tables += ": sent nothing\n";
      continue;
    }
    auto logs = unpack_flight(part.bytes);
    if (!logs) {
      tables += ": " + logs.error().message() + "\n";
      continue;
    }
    tables += logs->empty() ? ": no worker has used ddprun's collectives\n" : "\n";
    for (FlightLog& log : *logs) {
      tables += flight_table(log, last, 0);
      all.push_back(std::move(log));
    }
  }
  const std::string verdict = flight_verdict(all, 0);
  return (verdict.empty() ? "nobody waits in a collective\n" : verdict) + "\n" + tables;
}

}  // namespace ddprun::launcher
