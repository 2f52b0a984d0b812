#include "launcher/agent/node_address.h"

#include <algorithm>
#include <cctype>

namespace ddprun::launcher {

bool is_unspecified(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

bool is_numeric(std::string_view host) {
  if (host.find(':') != std::string_view::npos) return true;  // no name has colons
  const auto digit_or_dot = [](unsigned char c) { return c == '.' || std::isdigit(c) != 0; };
  return !host.empty() && std::all_of(host.begin(), host.end(), digit_or_dot);
}

bool is_link_local(std::string_view host) {
  if (host.size() < 5 || host[4] != ':' || host[3] == ':') return false;
  const auto lower = [&](std::size_t i) { return std::tolower(static_cast<unsigned char>(host[i])); };
  const int third = lower(2);
  return lower(0) == 'f' && lower(1) == 'e' && (third == '8' || third == '9' || third == 'a' || third == 'b');
}

std::string_view without_zone(std::string_view host) { return host.substr(0, host.find('%')); }

std::string_view zone_of(std::string_view host) {
  const auto percent = host.find('%');
  return percent == std::string_view::npos ? std::string_view() : host.substr(percent + 1);
}

std::string master_host(const MasterView& view) {
  std::string host = view.announced;
  if (view.static_ranks && !view.hosting && !view.server_address.empty()) {
    // A name stands only if it is the one by which this node got there. An address that this node has reached is right
    // even where the server knows itself by another one (a forwarded port), unless nobody else could use it.
    const bool ours = !is_numeric(host) && host == view.endpoint_host;
    if (!ours && (!is_loopback(view.server_address) || !is_numeric(host))) host = view.server_address;
  }
  if (is_link_local(host) && !view.zone.empty()) host = std::string(without_zone(host)) + "%" + view.zone;
  return host;
}

}  // namespace ddprun::launcher
