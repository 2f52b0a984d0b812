#include "common/peer_identity.h"

#include <algorithm>
#include <utility>

namespace ddprun {

namespace {

constexpr std::string_view kTag = "ddprun-1 ";
constexpr std::string_view kAgent = "agent:";
constexpr std::string_view kOperator = "operator:";
constexpr std::size_t kKeyIdDigits = 16;

bool is_key_id(std::string_view text) {
  return text.size() == kKeyIdDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string PeerIdentity::to_string() const { return std::string(role == PeerRole::agent ? kAgent : kOperator) + name; }

Result<PeerIdentity> parse_identity(std::string_view text) {
  PeerIdentity identity;
  if (text.starts_with(kAgent)) {
    text.remove_prefix(kAgent.size());
  } else if (text.starts_with(kOperator)) {
    identity.role = PeerRole::operator_tool;
    text.remove_prefix(kOperator.size());
  } else {
    return Error(Errc::malformed, "an identity that is neither 'agent:RUN_ID' nor 'operator:NAME'");
  }
  if (text.empty() || text.size() > kMaxIdentityName)
    return Error(Errc::malformed, "an identity without a fitting name");
  identity.name = text;
  return identity;
}

Result<std::string> key_id(const Key& secret) {
  const auto derived = derive_key(secret, "", "key id");
  if (!derived) return derived.error();
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  for (const char c : derived->bytes().substr(0, kKeyIdDigits / 2)) {
    id += kHex[static_cast<unsigned char>(c) >> 4];
    id += kHex[static_cast<unsigned char>(c) & 15];
  }
  return id;
}

Result<Key> handshake_key(const Key& secret, const PeerIdentity& identity) {
  return derive_key(secret, identity.to_string(), "tls 1.3 psk");
}

std::string encode_offer(const OfferedIdentity& offer) {
  return std::string(kTag) + offer.key_id + " " + offer.identity.to_string();
}

Result<OfferedIdentity> decode_offer(std::string_view bytes) {
  if (!bytes.starts_with(kTag)) return Error(Errc::malformed, "a TLS client that is none of ours");
  bytes.remove_prefix(kTag.size());
  OfferedIdentity offer;
  if (bytes.size() <= kKeyIdDigits || !is_key_id(bytes.substr(0, kKeyIdDigits)) || bytes[kKeyIdDigits] != ' ') {
    return Error(Errc::malformed, "a TLS client without a key's id");
  }
  offer.key_id = bytes.substr(0, kKeyIdDigits);
  auto identity = parse_identity(bytes.substr(kKeyIdDigits + 1));
  if (!identity) return std::move(identity).error();
  offer.identity = std::move(*identity);
  return offer;
}

}  // namespace ddprun
