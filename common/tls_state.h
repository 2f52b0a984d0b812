#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <vector>

#include "common/tls_engine.h"

// Of tls_context.cc, tls_certificate.cc and tls_engine.cc only: OpenSSL's headers stay out of everything else.
namespace ddprun {

template <auto Free>
struct OpensslFree {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
template <typename T, auto Free>
using OpensslPtr = std::unique_ptr<T, OpensslFree<Free>>;

struct TlsContextState {
  OpensslPtr<SSL_CTX, &SSL_CTX_free> context;
  bool is_server = false;
  bool has_certificates = false;
  SecretFinder finder;      // server
  PeerIdentity identity;    // client: who we are
  std::string server_name;  // client
  std::string offer;        // client: the PSK identity; "" = certificates
  std::string own_key_id;   // client
  Key handshake;            // client
};

struct TlsEngineState {
  std::shared_ptr<const TlsContext> owner;
  const TlsContextState* context = nullptr;  // the owner's
  OpensslPtr<SSL, &SSL_free> ssl;
  bool established = false;
  bool failed = false;
  bool alerted = false;  // client: the server sent an alert, perhaps a sentence follows
  bool denied = false;
  bool ended = false;
  bool by_key = false;  // the peer is `peer`; else what its certificate names
  std::size_t unauthenticated = 0;
  std::string plain;
  std::string refusal;             // the sentence in clear: ours to send, or the server's as far as it came
  std::string why;                 // server: why the key is not taken
  std::string log_why;             // and what only our own log says of it
  PeerIdentity peer;               // server: whose key it was
  std::vector<std::string> names;  // of the peer's certificate
};

// A session as a key that both sides know: TLS 1.3's external PSK. nullptr: OpenSSL said no.
SSL_SESSION* session_of_key(SSL* ssl, const Key& key);
// The callbacks by which OpenSSL asks for keys.
int offer_key(SSL* ssl, const EVP_MD* digest, const unsigned char** id, std::size_t* id_size, SSL_SESSION** session);
int find_key(SSL* ssl, const unsigned char* id, std::size_t id_size, SSL_SESSION** session);

// Certificate, key and CA into the context. Errors name the option.
Result<void> use_files(SSL_CTX* context, const TlsFiles& files);
// "agent:job7", "rendezvous", ... of the URIs; "dns:..." of the DNS names.
std::vector<std::string> names_of(X509* certificate);
bool names_host(X509* certificate, const std::string& host);

Error openssl_tls_error(Errc code, const std::string& what);

}  // namespace ddprun
