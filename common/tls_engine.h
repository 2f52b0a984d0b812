#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/peer_identity.h"
#include "common/result.h"
#include "common/secret.h"

// TLS 1.3 by OpenSSL, without any I/O: bytes of the peer go in, bytes for the peer and plain text come out. So the same
// code serves coroutines and blocking tools, takes bytes that somebody else has read already, and can be fuzzed.
//
// Both sides know a secret (external PSK with (EC)DHE: who learns the secret later cannot read what was said before).
// No certificates then, no session tickets, no early data, no older versions.
//
// A server that refuses says why behind its alert, in clear: "ddprun-refusal " | sentence | "\n" (<= kMaxRefusal
// bytes), and closes. It is shown to people, escaped; nothing is decided by it.
namespace ddprun {

inline constexpr std::size_t kMaxHandshakeBytes = 4096;  // of a peer that we do not know yet
inline constexpr std::size_t kMaxCertificateHandshakeBytes = 32768;
inline constexpr std::size_t kMaxRefusal = 1024;
inline constexpr char kTlsFirstByte = 0x16;  // of a TLS client; no c10d client and no plain agent begins so

// Certificates of a site that has a CA, in PEM. Names of a certificate are its SANs: URI "ddprun:agent:RUN_ID",
// "ddprun:operator:NAME", "ddprun:rendezvous", or DNS "RUN_ID".
struct TlsFiles {
  std::string certificate, key, ca;
  bool given() const { return !certificate.empty(); }
};

// All secrets that a server knows for this identity, the first first. Errors: not_found (none), others with a sentence
// for our own log.
using SecretFinder = std::function<Result<Secrets>(const PeerIdentity&)>;

struct TlsContextState;  // tls_state.h: OpenSSL's side of both
struct TlsEngineState;

// What all handshakes of one side share. Shared by engines; immutable.
class TlsContext {
 public:
  // As `identity` with the first of `secrets`, or with certificates if `secrets` is empty. `server_name`: the host that
  // the server's certificate may name instead of "ddprun:rendezvous" or our run id.
  // Errors: invalid_argument, not_found, malformed: the files; system: OpenSSL itself.
  static Result<std::shared_ptr<const TlsContext>> client(PeerIdentity identity, const Secrets& secrets,
                                                          const TlsFiles& files = {}, std::string server_name = "");
  static Result<std::shared_ptr<const TlsContext>> server(SecretFinder finder, const TlsFiles& files = {});
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsEngine;
  explicit TlsContext(std::unique_ptr<TlsContextState> state);
  std::unique_ptr<TlsContextState> state_;
};

class TlsEngine {
 public:
  // Errors: system.
  static Result<TlsEngine> make(std::shared_ptr<const TlsContext> context);
  TlsEngine(TlsEngine&&) noexcept;
  TlsEngine& operator=(TlsEngine&&) noexcept;
  ~TlsEngine();

  // A client's opening is in take_output() from the beginning on. After an error take_output() holds the last word to
  // the peer, and the connection is of no use. Errors:
  //   refused    the peer does not know our key, or we do not know its: see denied()
  //   malformed  no TLS, or not ours; too many bytes before we know who it is
  Result<void> receive(std::string_view bytes);
  // The peer has closed, or says nothing more in time: what that means. refused if it had sent an alert.
  Error at_end();
  bool established() const;  // we know who the peer is
  // Once refused: another try with the same key is pointless. Not for ends without a word, which may be the network's.
  bool denied() const;

  // After established(). What the peer must get for this plain text.
  Result<std::string> seal(std::string_view plain);
  std::string take_output();  // handshake and alerts
  // What the peer said, decrypted. Empty: receive() more.
  std::string& plain();
  bool peer_ended() const;  // it said that it will say no more

  // The server's view, after established(): may the peer speak as `identity`? A key proves one, a certificate as many
  // as it names.
  bool peer_is(const PeerIdentity& identity) const;
  std::string peer_name() const;  // for people: "agent:job7"

 private:
  explicit TlsEngine(std::unique_ptr<TlsEngineState> state);
  Result<void> shake_hands();
  Result<void> check_peer();
  Error failure(const char* doing);
  std::string refused_as() const;

  std::unique_ptr<TlsEngineState> state_;
};

// What a server without any secret answers to a TLS client: an alert and why.
std::string tls_refusal(std::string_view why);

}  // namespace ddprun
