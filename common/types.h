#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "common/result.h"

namespace ddprun {

// Ranks and rounds are types, so that a rank cannot be passed for a group_rank.
template <typename Tag>
struct Number {
  std::int64_t value = 0;

  constexpr Number() = default;
  constexpr explicit Number(std::int64_t v) : value(v) {}
  friend constexpr auto operator<=>(Number, Number) = default;
};

using Rank = Number<struct RankTag>;            // 0..world_size-1 over the job
using LocalRank = Number<struct LocalRankTag>;  // 0..local_world_size-1 on the node
using GroupRank = Number<struct GroupRankTag>;  // the node's index in this round
using Round = Number<struct RoundTag>;          // one completed rendezvous; ranks mean something only with it

template <typename Tag>
struct Name {
  std::string value;

  Name() = default;
  explicit Name(std::string v) : value(std::move(v)) {}
  friend auto operator<=>(const Name&, const Name&) = default;
};

using NodeId = Name<struct NodeIdTag>;  // one launcher process, unique for its life
using RunId = Name<struct RunIdTag>;    // the job's name at the rendezvous (--rdzv-id)

// A host (name or numeric address, no brackets) and a port.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;

  // "host:port", "[v6]:port", "host", "v6"; a missing port becomes `default_port`. Without brackets, what follows the
  // last colon is the port, as torch reads it, if an IPv6 address stands before it: "fe80::1:29500"; else all is the
  // host. Errors: invalid_argument with the text and what is wrong with it.
  static Result<Endpoint> parse(std::string_view text, std::uint16_t default_port);
  std::string to_string() const;  // brackets around IPv6 addresses
};

// By its text alone: "localhost", or a numeric address of loopback, ::ffff:127.0.0.1 too.
bool is_loopback(std::string_view host);

}  // namespace ddprun

template <typename Tag>
struct std::hash<ddprun::Number<Tag>> {
  std::size_t operator()(ddprun::Number<Tag> n) const noexcept { return std::hash<std::int64_t>()(n.value); }
};
template <typename Tag>
struct std::hash<ddprun::Name<Tag>> {
  std::size_t operator()(const ddprun::Name<Tag>& n) const noexcept { return std::hash<std::string>()(n.value); }
};
