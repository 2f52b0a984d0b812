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

// Groups of up to four hex digits, "::" once; an IPv4 tail or a zone may follow. Enough to tell it from "host:port".
static bool is_ipv6(std::string_view text) {
  text = text.substr(0, text.find('%'));
  int groups = 0;
  bool shortened = false;
  while (!text.empty()) {
    if (text.starts_with("::")) {
      if (shortened) return false;
      shortened = true;
      text.remove_prefix(2);
      if (text.empty()) break;
    } else if (groups > 0) {
      if (text.front() != ':') return false;
      text.remove_prefix(1);
    }
    const auto size = std::min(text.find(':'), text.size());
    const std::string_view group = text.substr(0, size);
    const auto hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
    if (group.find('.') != std::string_view::npos && size == text.size()) {
      groups += 2;
    } else if (size > 0 && size <= 4 && std::all_of(group.begin(), group.end(), hex)) {
      ++groups;
    } else {
      return false;
    }
    text.remove_prefix(size);
  }
  return shortened ? groups < 8 : groups == 8;
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
    const auto colon = text.rfind(':');
    const std::string_view tail = text.substr(colon + 1);
    const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    has_port = !tail.empty() && std::all_of(tail.begin(), tail.end(), digit) && is_ipv6(text.substr(0, colon));
    endpoint.host = has_port ? text.substr(0, colon) : text;
    if (has_port) port_text = tail;
    if (!is_ipv6(endpoint.host)) {
      return Error(Errc::invalid_argument,
                   "endpoint '" + std::string(text) + "': it has more than one ':' and is no IPv6 address");
    }
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

bool is_loopback(std::string_view host) {
  if (host == "localhost") return true;
  if (host.starts_with("::ffff:")) host.remove_prefix(7);
  if (host.find_first_not_of("0123456789.") == std::string_view::npos) return host.starts_with("127.");
  // "::1", and what else says the same.
  return host.find(':') != std::string_view::npos && host.back() == '1' &&
         host.find_first_not_of("0:") == host.size() - 1;
}

}  // namespace ddprun
