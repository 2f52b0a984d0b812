#pragma once

#include <string>
#include <string_view>

#include "common/types.h"

// What the text of a host says by itself: pure, nobody is asked.
namespace ddprun::launcher {

bool is_unspecified(std::string_view host);  // "0.0.0.0", "::": all addresses of the host that says so
bool is_numeric(std::string_view host);      // an address, not a name
// IPv6 fe80::/10. Such an address means something together with an interface (its zone) only, and each host has names
// of its own for those.
bool is_link_local(std::string_view host);
std::string_view without_zone(std::string_view host);  // "fe80::1%eth0" -> "fe80::1"
std::string_view zone_of(std::string_view host);       // "fe80::1%eth0" -> "eth0"; "" = none

// Which host a node hands its workers as MASTER_ADDR.
struct MasterView {
  bool static_ranks = false;   // the rendezvous's port serves the store too
  bool hosting = false;        // it is in this process
  std::string announced;       // by the rendezvous, the same for all nodes: an address, static: perhaps a name
  std::string endpoint_host;   // as this node was given it
  std::string server_address;  // numeric: where this node reached the rendezvous
  std::string zone;            // of this host, for link-local addresses
};
std::string master_host(const MasterView& view);

}  // namespace ddprun::launcher
