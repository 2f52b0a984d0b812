#include "common/types.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace ddprun {

static Result<std::uint16_t> parse_port(std::string_view text, std::string_view whole) {
  unsigned port = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (ec != std::errc() || end != text.data() + text.size() || port > 65535) {
    return Error(Errc::invalid_argument, "endpoint '" + std::string(whole) + "': port '" + std::string(text) +
                                             "' is not a number from 0 to 65535");
  }
  return static_cast<std::uint16_t>(port);
}

Result<Endpoint> Endpoint::parse(std::string_view text, std::uint16_t default_port) {
  Endpoint endpoint;
  endpoint.port = default_port;
  std::string_view port_text;
  bool has_port = false;
  if (!text.empty() && text.front() == '[') {
    const auto close = text.find(']');
    if (close == std::string_view::npos) {
      return Error(Errc::invalid_argument, "endpoint '" + std::string(text) + "': '[' without ']'");
    }
    endpoint.host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty()) {
      if (rest.front() != ':') {
        return Error(Errc::invalid_argument, "endpoint '" + std::string(text) + "': expected ':PORT' after ']'");
      }
      port_text = rest.substr(1);
      has_port = true;
    }
  } else if (std::count(text.begin(), text.end(), ':') >= 2) {
    endpoint.host = text;
  } else if (const auto colon = text.find(':'); colon != std::string_view::npos) {
    endpoint.host = text.substr(0, colon);
    port_text = text.substr(colon + 1);
    has_port = true;
  } else {
    endpoint.host = text;
  }
  if (endpoint.host.empty()) {
    return Error(Errc::invalid_argument, "endpoint '" + std::string(text) + "': the host is empty");
  }
  const auto allowed = [](unsigned char c) {
    return c >= 0x80 || std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == ':' || c == '%';
  };
  if (!std::all_of(endpoint.host.begin(), endpoint.host.end(), allowed)) {
    return Error(Errc::invalid_argument, "endpoint '" + std::string(text) +
                                             "': the host may hold letters, digits, "
                                             "'-', '_', '.' and ':' only");
  }
  if (has_port) {
    auto port = parse_port(port_text, text);
    if (!port) return std::move(port).error();
    endpoint.port = *port;
  }
  return endpoint;
}

std::string Endpoint::to_string() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace ddprun
