#include "rendezvous/server/session_keys.h"

namespace ddprun::rendezvous {

namespace {

// In a time that does not tell how much of it was right.
bool same(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace

bool SessionKeys::may_speak(const NodeId& node, const std::string& key) {
  const auto [found, is_new] = keys_.try_emplace(node, key);
  return is_new || same(found->second, key);
}

}  // namespace ddprun::rendezvous
