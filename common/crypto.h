#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

// The few primitives that we need, all of them OpenSSL's. No OpenSSL type leaves the .cc file.
// Errors: system with OpenSSL's own words; those mean a broken installation, not a peer.
namespace ddprun {

inline constexpr std::size_t kKeyBytes = 32;

// 32 secret bytes, wiped when they go. Compared in constant time, never printed.
class Key {
 public:
  Key() = default;
  explicit Key(std::string_view bytes);  // of kKeyBytes bytes
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();

  std::string_view bytes() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  friend bool operator==(const Key& a, const Key& b);

 private:
  std::array<std::uint8_t, kKeyBytes> bytes_{};
};

// From the system's generator.
Result<std::string> random_bytes(std::size_t count);
Result<Key> random_key();

// The time it takes depends on the lengths only.
bool same_bytes(std::string_view a, std::string_view b);
// Overwrites the text's memory, so that no later reader of this process's memory finds it there.
void wipe(std::string& text);

// HKDF-SHA256 (RFC 5869), 32 bytes. Each use of a secret has its own `label`, so that no key serves two purposes.
Result<Key> derive_key(const Key& secret, std::string_view context, std::string_view label);
Result<std::string> hmac_sha256(const Key& key, std::string_view text);

// AES-256-GCM: 12 random bytes of nonce | ciphertext | 16 bytes of tag. `bound` is authenticated with it and not sent:
// what this text belongs to, so that it is worth nothing elsewhere.
inline constexpr std::size_t kSealOverhead = 28;
Result<std::string> seal(const Key& key, std::string_view text, std::string_view bound);
// Errors: malformed when it was not sealed with this key for `bound`, or was changed.
Result<std::string> open_sealed(const Key& key, std::string_view sealed, std::string_view bound);

}  // namespace ddprun
