#pragma once

#include <string>
#include <string_view>

#include "common/crypto.h"
#include "common/result.h"

// Who a peer of the rendezvous says it is, and which key proves it.
//
// On the wire (the PSK identity of TLS 1.3, in clear): "ddprun-1 <16 hex digits of the key's id> agent:<run id>" or
// "... operator:<name>". The key's id is derived from the secret and tells nothing about it; it lets a server that
// knows several (a rotation) take the right one, and both sides say which secret they hold.
namespace ddprun {

enum class PeerRole { agent, operator_tool };

struct PeerIdentity {
  PeerRole role = PeerRole::agent;
  std::string name;  // the run id, or the operator's

  std::string to_string() const;  // "agent:job7"; not escaped
  friend bool operator==(const PeerIdentity&, const PeerIdentity&) = default;
};

inline constexpr std::size_t kMaxIdentityName = 255;

// "agent:job7". Errors: malformed.
Result<PeerIdentity> parse_identity(std::string_view text);

struct OfferedIdentity {
  PeerIdentity identity;
  std::string key_id;
};

Result<std::string> key_id(const Key& secret);
// The key of the handshake: another one for each identity, so that no job's agent can speak for another job or for an
// operator, even where all were given the same secret by mistake.
Result<Key> handshake_key(const Key& secret, const PeerIdentity& identity);

std::string encode_offer(const OfferedIdentity& offer);
// Errors: malformed.
Result<OfferedIdentity> decode_offer(std::string_view bytes);

}  // namespace ddprun
