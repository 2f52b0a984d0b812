#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

// Which hosts a job runs on, from --hosts, a host file or a batch system's file. Pure. Errors say which word of which
// list (or line of which file) is wrong, and what may stand there.
namespace ddprun::launcher {

struct Host {
  std::string name;                   // as the remote shell takes it: "a", "user@a", "fd00::1" (no brackets)
  std::optional<std::int64_t> slots;  // workers there; nullopt = the list does not say
  std::vector<std::string> devices;   // chosen by --include and --exclude; empty = all

  std::string address() const;  // without the user
};

struct HostList {
  std::vector<Host> hosts;         // each once, in the order of the list; never empty
  std::vector<std::string> notes;  // what the user should hear: a host that stood there twice
};

// "a:2,b:2", "a,user@b,[fd00::1]:4". A host twice: its workers are added up, with a note. `source`: "--hosts".
Result<HostList> parse_hosts(std::string_view text, const std::string& source);

// A line a host: "a", "a:2", "a slots=2 max_slots=4" (Open MPI, DeepSpeed); "#" begins a comment. `file` for errors.
Result<HostList> parse_hostfile(std::string_view text, const std::string& file);

// A line a slot, so that a host with four stands there four times (PBS_NODEFILE, LSB_DJOB_HOSTFILE).
Result<HostList> parse_slot_file(std::string_view text, const std::string& file);

// "host slots queue processors" a line (Grid Engine's PE_HOSTFILE).
Result<HostList> parse_pe_hostfile(std::string_view text, const std::string& file);

// DeepSpeed's words: "a@b:0,2" or "a,b:0,2": hosts, or the numbered devices of them. First `include`, then `exclude`;
// "" changes nothing. Errors: a name that is not in the list, a device that it does not have, nothing left.
Result<void> select_hosts(HostList& list, std::string_view include, std::string_view exclude);

}  // namespace ddprun::launcher
