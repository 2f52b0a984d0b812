#include "common/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <cstring>
#include <limits>
#include <memory>

#include "common/check.h"

namespace ddprun {

namespace {

constexpr std::size_t kNonceBytes = 12;
constexpr std::size_t kTagBytes = 16;
static_assert(kSealOverhead == kNonceBytes + kTagBytes);

using Kdf = std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)>;
using KdfContext = std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)>;
using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

Error openssl_error(const char* what) {
  char text[256] = "no reason given";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return Error(Errc::system, std::string(what) + ": " + text);
}

const unsigned char* in(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }
unsigned char* out(std::string& text, std::size_t offset = 0) {
  return reinterpret_cast<unsigned char*>(text.data()) + offset;
}

OSSL_PARAM octets(const char* name, std::string_view text) {  // only read
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(text.data()), text.size());
}

bool fits(std::string_view text) {  // OpenSSL counts in int
  return text.size() < static_cast<std::size_t>(std::numeric_limits<int>::max()) - kSealOverhead;
}

}  // namespace

Key::Key(std::string_view bytes) {
  CHECK(bytes.size() == kKeyBytes, "a key has 32 bytes");
  std::memcpy(bytes_.data(), bytes.data(), kKeyBytes);
}

Key::~Key() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

bool operator==(const Key& a, const Key& b) { return same_bytes(a.bytes(), b.bytes()); }

Result<std::string> random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(out(bytes), static_cast<int>(count)) != 1) return openssl_error("random bytes");
  return bytes;
}

Result<Key> random_key() {
  auto bytes = random_bytes(kKeyBytes);
  if (!bytes) return std::move(bytes).error();
  Key key(*bytes);
  wipe(*bytes);
  return key;
}

bool same_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && (a.empty() || CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0);
}

void wipe(std::string& text) {
  OPENSSL_cleanse(text.data(), text.size());
  text.clear();
}

Result<Key> derive_key(const Key& secret, std::string_view context, std::string_view label) {
  // The label ends with a NUL, so that no label and context read like another pair.
  std::string info(label);
  info.push_back('\0');
  info += context;
  const Kdf kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), &EVP_KDF_free);
  const KdfContext derivation(kdf ? EVP_KDF_CTX_new(kdf.get()) : nullptr, &EVP_KDF_CTX_free);
  if (!derivation) return openssl_error("HKDF");
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                                   octets(OSSL_KDF_PARAM_SALT, "ddprun-1"), octets(OSSL_KDF_PARAM_KEY, secret.bytes()),
                                   octets(OSSL_KDF_PARAM_INFO, info), OSSL_PARAM_construct_end()};
  std::string bytes(kKeyBytes, '\0');
  if (EVP_KDF_derive(derivation.get(), out(bytes), bytes.size(), parameters) != 1) return openssl_error("HKDF");
  Key key(bytes);
  wipe(bytes);
  return key;
}

Result<std::string> hmac_sha256(const Key& key, std::string_view text) {
  std::string digest(32, '\0');
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(kKeyBytes), in(text), text.size(), out(digest), &size) ==
      nullptr) {
    return openssl_error("HMAC");
  }
  return digest;
}

Result<std::string> seal(const Key& key, std::string_view text, std::string_view bound) {
  if (!fits(text) || !fits(bound)) return Error(Errc::invalid_argument, "too long to be sealed");
  auto sealed = random_bytes(kNonceBytes);
  if (!sealed) return sealed;
  sealed->resize(kNonceBytes + text.size() + kTagBytes);
  const Cipher cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  int size = 0;
  const bool done =
      cipher && EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, in(key.bytes()), in(*sealed)) == 1 &&
      EVP_EncryptUpdate(cipher.get(), nullptr, &size, in(bound), static_cast<int>(bound.size())) == 1 &&
      EVP_EncryptUpdate(cipher.get(), out(*sealed, kNonceBytes), &size, in(text), static_cast<int>(text.size())) == 1 &&
      EVP_EncryptFinal_ex(cipher.get(), out(*sealed, kNonceBytes + text.size()), &size) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(kTagBytes),
                          out(*sealed, kNonceBytes + text.size())) == 1;
  if (!done) return openssl_error("AES-256-GCM");
  return sealed;
}

Result<std::string> open_sealed(const Key& key, std::string_view sealed, std::string_view bound) {
  const Error wrong(Errc::malformed, "not sealed with this key, or changed on the way");
  if (sealed.size() < kSealOverhead || !fits(sealed) || !fits(bound)) return wrong;
  const std::size_t length = sealed.size() - kSealOverhead;
  std::string text(length, '\0');
  std::string tag(sealed.substr(kNonceBytes + length));
  const std::string_view body = sealed.substr(kNonceBytes, length);
  const Cipher cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  int size = 0;
  const bool ready =
      cipher && EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, in(key.bytes()), in(sealed)) == 1 &&
      EVP_DecryptUpdate(cipher.get(), nullptr, &size, in(bound), static_cast<int>(bound.size())) == 1 &&
      EVP_DecryptUpdate(cipher.get(), out(text), &size, in(body), static_cast<int>(length)) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, static_cast<int>(kTagBytes), tag.data()) == 1;
  if (!ready) return openssl_error("AES-256-GCM");
  if (EVP_DecryptFinal_ex(cipher.get(), out(text, length), &size) != 1) {
    ERR_clear_error();
    wipe(text);
    return wrong;
  }
  return text;
}

}  // namespace ddprun
