#include <openssl/err.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/tls_state.h"

namespace ddprun {

namespace {

// The hash of an external PSK is fixed, and SHA-256 goes with this one.
constexpr const char* kCipher = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};
constexpr const char* kCertificateCiphers =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

Result<void> prepare(SSL_CTX* context, bool certificates) {
  const bool fine = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_ciphersuites(context, certificates ? kCertificateCiphers : kCipher) == 1 &&
                    SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 && SSL_CTX_set_num_tickets(context, 0) == 1;
  if (!fine) return openssl_tls_error(Errc::system, "TLS 1.3 cannot be set up");
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  // Without a CA no certificate will do: who has none of our keys gets nowhere by showing one.
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return Result<void>();
}

}  // namespace

Error openssl_tls_error(Errc code, const std::string& what) {
  const unsigned long reason = ERR_get_error();
  ERR_clear_error();
  const char* text = reason == 0 ? nullptr : ERR_reason_error_string(reason);
  return Error(code, text == nullptr ? what : what + ": " + text);
}

SSL_SESSION* session_of_key(SSL* ssl, const Key& key) {
  OpensslPtr<SSL_SESSION, &SSL_SESSION_free> session(SSL_SESSION_new());
  const SSL_CIPHER* cipher = session ? SSL_CIPHER_find(ssl, kCipherId) : nullptr;
  const bool fine =
      cipher != nullptr &&
      SSL_SESSION_set1_master_key(session.get(), reinterpret_cast<const unsigned char*>(key.bytes().data()),
                                  key.bytes().size()) == 1 &&
      SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return fine ? session.release() : nullptr;
}

TlsContext::TlsContext(std::unique_ptr<TlsContextState> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;

Result<std::shared_ptr<const TlsContext>> TlsContext::client(PeerIdentity identity, const Secrets& secrets,
                                                             const TlsFiles& files, std::string server_name) {
  auto state = std::make_unique<TlsContextState>();
  state->context.reset(SSL_CTX_new(TLS_client_method()));
  if (!state->context) return openssl_tls_error(Errc::system, "TLS 1.3 cannot be set up");
  if (auto prepared = prepare(state->context.get(), secrets.empty()); !prepared) return std::move(prepared).error();
  state->server_name = std::move(server_name);
  if (!secrets.empty()) {
    auto id = key_id(secrets.front());
    if (!id) return std::move(id).error();
    auto key = handshake_key(secrets.front(), identity);
    if (!key) return std::move(key).error();
    OfferedIdentity offer;
    offer.identity = identity;
    offer.key_id = *id;
    state->offer = encode_offer(offer);
    state->own_key_id = std::move(*id);
    state->handshake = *key;
    SSL_CTX_set_psk_use_session_callback(state->context.get(), &offer_key);
  } else {
    if (auto used = use_files(state->context.get(), files); !used) return std::move(used).error();
    state->has_certificates = true;
  }
  state->identity = std::move(identity);
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(state)));
}

Result<std::shared_ptr<const TlsContext>> TlsContext::server(SecretFinder finder, const TlsFiles& files) {
  auto state = std::make_unique<TlsContextState>();
  state->is_server = true;
  state->context.reset(SSL_CTX_new(TLS_server_method()));
  if (!state->context) return openssl_tls_error(Errc::system, "TLS 1.3 cannot be set up");
  if (auto prepared = prepare(state->context.get(), files.given()); !prepared) return std::move(prepared).error();
  // A server that asks for certificates must name its sessions, also those that are keys; a client must not.
  const unsigned char session_id[] = "ddprun";
  SSL_CTX_set_session_id_context(state->context.get(), session_id, sizeof session_id - 1);
  state->finder = std::move(finder);
  if (state->finder) SSL_CTX_set_psk_find_session_callback(state->context.get(), &find_key);
  if (files.given()) {
    if (auto used = use_files(state->context.get(), files); !used) return std::move(used).error();
    state->has_certificates = true;
  }
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(state)));
}

}  // namespace ddprun
