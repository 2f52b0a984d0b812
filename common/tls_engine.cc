#include "common/tls_engine.h"

#include <openssl/bio.h>
#include <openssl/err.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/check.h"
#include "common/printable.h"
#include "common/tls_state.h"

namespace ddprun {

namespace {

constexpr std::string_view kRefusalTag = "ddprun-refusal ";
constexpr std::size_t kRecordBytes = 16384;  // of plain text

TlsEngineState& engine_of(const SSL* ssl) { return *static_cast<TlsEngineState*>(SSL_get_app_data(ssl)); }

// What these alerts say cannot be mended by another try. All others may be an accident of the peer's.
bool denies(int alert) {
  static constexpr std::array kFinal{
      SSL_AD_HANDSHAKE_FAILURE,
      SSL_AD_ILLEGAL_PARAMETER,  // the key's id is known there, the key is another one
      SSL_AD_DECRYPT_ERROR,        SSL_AD_BAD_CERTIFICATE,     SSL_AD_UNSUPPORTED_CERTIFICATE,
      SSL_AD_CERTIFICATE_REVOKED,  SSL_AD_CERTIFICATE_EXPIRED, SSL_AD_CERTIFICATE_UNKNOWN,
      SSL_AD_UNKNOWN_CA,           SSL_AD_ACCESS_DENIED,       SSL_AD_UNKNOWN_PSK_IDENTITY,
      SSL_AD_CERTIFICATE_REQUIRED,
  };
  return std::find(kFinal.begin(), kFinal.end(), alert) != kFinal.end();
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string refusal_line(std::string_view why) {
  std::string line = std::string(kRefusalTag) + printable(why);
  if (line.size() >= kMaxRefusal) line.resize(kMaxRefusal - 1);
  return line + "\n";
}

std::string ids_of(const Secrets& secrets) {
  std::string text;
  for (const Key& secret : secrets) {
    const auto id = key_id(secret);
    if (id) text += (text.empty() ? "" : " or ") + *id;
  }
  return text;
}

}  // namespace

int offer_key(SSL* ssl, const EVP_MD* digest, const unsigned char** id, std::size_t* id_size, SSL_SESSION** session) {
  const TlsContextState& context = *engine_of(ssl).context;
  *session = session_of_key(ssl, context.handshake);
  if (*session == nullptr) return 0;
  const SSL_CIPHER* cipher = SSL_SESSION_get0_cipher(*session);
  if (digest != nullptr && SSL_CIPHER_get_handshake_digest(cipher) != digest) {  // after a retry with another hash
    SSL_SESSION_free(*session);
    *session = nullptr;
    return 1;
  }
  *id = reinterpret_cast<const unsigned char*>(context.offer.data());
  *id_size = context.offer.size();
  return 1;
}

// 1 and no session: go on without a key, which ends in handshake_failure where there are no certificates.
int find_key(SSL* ssl, const unsigned char* id, std::size_t id_size, SSL_SESSION** session) {
  *session = nullptr;
  TlsEngineState& engine = engine_of(ssl);
  const auto offer = decode_offer(std::string_view(reinterpret_cast<const char*>(id), id_size));
  if (!offer) {
    engine.why = offer.error().message();
    return 1;
  }
  const std::string who = offer->identity.to_string();
  const auto secrets = engine.context->finder(offer->identity);
  if (!secrets) {
    engine.why = who + " came with key " + offer->key_id + ", and there is no secret for it here";
    engine.log_why = secrets.error().message();
    return 1;
  }
  for (const Key& secret : *secrets) {
    const auto its_id = key_id(secret);
    if (!its_id || *its_id != offer->key_id) continue;
    const auto key = handshake_key(secret, offer->identity);
    if (key) *session = session_of_key(ssl, *key);
    engine.peer = offer->identity;
    engine.why = who + " came with the name of key " + offer->key_id + ", but does not hold it";
    return 1;
  }
  engine.why = who + " came with key " + offer->key_id + "; here " + who + " is known by key " + ids_of(*secrets);
  return 1;
}

std::string tls_refusal(std::string_view why) {
  const char alert[] = {0x15, 3, 3, 0, 2, 2, SSL_AD_HANDSHAKE_FAILURE};
  return std::string(alert, sizeof alert) + refusal_line(why);
}

TlsEngine::TlsEngine(std::unique_ptr<TlsEngineState> state) : state_(std::move(state)) {}
TlsEngine::TlsEngine(TlsEngine&&) noexcept = default;
TlsEngine& TlsEngine::operator=(TlsEngine&&) noexcept = default;
TlsEngine::~TlsEngine() = default;

Result<TlsEngine> TlsEngine::make(std::shared_ptr<const TlsContext> context) {
  auto state = std::make_unique<TlsEngineState>();
  state->context = context->state_.get();
  state->owner = std::move(context);
  state->ssl.reset(SSL_new(state->context->context.get()));
  BIO* in = BIO_new(BIO_s_mem());
  BIO* out = BIO_new(BIO_s_mem());
  if (!state->ssl || in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    return openssl_tls_error(Errc::exhausted, "no memory for a TLS connection");
  }
  BIO_set_mem_eof_return(in, -1);  // empty means: not yet
  BIO_set_mem_eof_return(out, -1);
  SSL_set_bio(state->ssl.get(), in, out);
  SSL_set_app_data(state->ssl.get(), state.get());
  const bool server = state->context->is_server;
  server ? SSL_set_accept_state(state->ssl.get()) : SSL_set_connect_state(state->ssl.get());
  TlsEngine engine(std::move(state));
  if (!server) {
    if (auto begun = engine.shake_hands(); !begun) return std::move(begun).error();
  }
  return engine;
}

Result<void> TlsEngine::receive(std::string_view bytes) {
  TlsEngineState& s = *state_;
  if (s.failed) {
    if (s.alerted) s.refusal += bytes.substr(0, kMaxRefusal - std::min(kMaxRefusal, s.refusal.size()));
    const bool whole = s.refusal.size() >= kMaxRefusal || s.refusal.find('\n') != std::string::npos;
    return s.alerted && !whole ? Result<void>() : Result<void>(at_end());
  }
  const std::size_t limit = s.context->has_certificates ? kMaxCertificateHandshakeBytes : kMaxHandshakeBytes;
  while (!bytes.empty()) {
    // No more than the limit is looked at until we know who speaks; what comes behind its last word is its own.
    const std::size_t room = s.established ? bytes.size() : std::min(bytes.size(), limit - s.unauthenticated);
    if (room == 0) {
      s.failed = true;
      return Error(Errc::malformed, "more than " + std::to_string(limit) + " bytes, and it is not known who speaks");
    }
    if (BIO_write(SSL_get_rbio(s.ssl.get()), bytes.data(), static_cast<int>(room)) != static_cast<int>(room)) {
      s.failed = true;
      return openssl_tls_error(Errc::exhausted, "no memory for a TLS connection");
    }
    bytes.remove_prefix(room);
    if (!s.established) {
      s.unauthenticated += room;
      if (auto shaken = shake_hands(); !shaken) return shaken;
      if (s.failed) return receive(bytes);  // an alert; the sentence may follow
      if (!s.established) continue;
    }
    char chunk[kRecordBytes];
    std::size_t size = 0;
    ERR_clear_error();
    while (SSL_read_ex(s.ssl.get(), chunk, sizeof chunk, &size) == 1) s.plain.append(chunk, size);
    const int why = SSL_get_error(s.ssl.get(), 0);
    if (why == SSL_ERROR_ZERO_RETURN) s.ended = true;
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_ZERO_RETURN) return failure("what it sent");
  }
  return Result<void>();
}

Result<void> TlsEngine::shake_hands() {
  ERR_clear_error();
  const int rc = SSL_do_handshake(state_->ssl.get());
  if (rc == 1) return check_peer();
  if (SSL_get_error(state_->ssl.get(), rc) == SSL_ERROR_WANT_READ) return Result<void>();
  Error error = failure("the TLS handshake");
  if (state_->alerted) return Result<void>();
  return error;
}

// OpenSSL is content; are we? Without a key or a certificate there is nobody that we know.
Result<void> TlsEngine::check_peer() {
  TlsEngineState& s = *state_;
  const bool by_key = s.by_key = SSL_session_reused(s.ssl.get()) == 1;
  const OpensslPtr<X509, &X509_free> certificate(by_key ? nullptr : SSL_get1_peer_certificate(s.ssl.get()));
  const bool by_certificate = certificate && SSL_get_verify_result(s.ssl.get()) == X509_V_OK;
  s.established = by_key || by_certificate;
  if (s.established && by_certificate) {
    s.names = names_of(certificate.get());
    const std::string& run_id = s.context->identity.name;
    if (!s.context->is_server && !contains(s.names, "rendezvous") && !contains(s.names, "agent:" + run_id) &&
        !contains(s.names, "dns:" + run_id) && !names_host(certificate.get(), s.context->server_name)) {
      s.established = false;
      s.why = "its certificate names neither ddprun:rendezvous nor " + s.context->server_name + " nor our run id";
    }
  }
  if (s.established) return Result<void>();
  s.failed = s.denied = true;
  return Error(Errc::refused, s.why.empty() ? "it has shown neither our key nor a certificate" : s.why);
}

// What OpenSSL's last error means for us. The alert for the peer, if any, is in the output already.
Error TlsEngine::failure(const char* doing) {
  TlsEngineState& s = *state_;
  s.failed = true;
  const unsigned long code = ERR_peek_error();
  const int alert = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET : 0;
  if (alert > 0 && alert < 256 && !s.established) {
    ERR_clear_error();
    s.why = std::string("it ends the TLS handshake: ") + SSL_alert_desc_string_long(alert);
    if (s.context->is_server) return Error(Errc::refused, s.why);
    s.denied = denies(alert);
    s.alerted = true;
    BIO* in = SSL_get_rbio(s.ssl.get());  // what came behind the alert
    s.refusal.resize(std::min(BIO_ctrl_pending(in), kMaxRefusal));
    const int got = BIO_read(in, s.refusal.data(), static_cast<int>(s.refusal.size()));
    s.refusal.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return at_end();
  }
  if (s.context->is_server && !s.established) {
    const bool known = !s.why.empty();
    if (!known) s.why = "the client shows no key that is known here";
    s.refusal = refusal_line(s.why);
    if (!s.log_why.empty()) s.why += " (" + s.log_why + ")";
    if (known) {
      s.denied = true;
      ERR_clear_error();
      return Error(Errc::refused, s.why);
    }
  }
  const int reason = ERR_GET_REASON(code);
  if (!s.context->is_server && !s.established && reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    s.denied = true;
    return openssl_tls_error(Errc::refused, "it does not know our key, or its certificate is not signed by --tls-ca");
  }
  return openssl_tls_error(Errc::malformed, std::string(doing) + " is no TLS 1.3 of ours");
}

Error TlsEngine::at_end() {
  TlsEngineState& s = *state_;
  if (!s.alerted) return Error(Errc::peer_closed, "the peer closed the connection in the TLS handshake");
  std::string text = s.why;
  if (s.refusal.starts_with(kRefusalTag)) {
    const std::size_t end = s.refusal.find('\n');
    text = "it says: " + printable(std::string_view(s.refusal).substr(0, end).substr(kRefusalTag.size()));
  }
  return Error(Errc::refused, refused_as() + text);
}

std::string TlsEngine::refused_as() const {
  const TlsContextState& context = *state_->context;
  std::string text = "refused as " + printable(context.identity.to_string());
  return text + (context.own_key_id.empty() ? " with our certificate; " : " with key " + context.own_key_id + "; ");
}

bool TlsEngine::established() const { return state_->established && !state_->failed; }
bool TlsEngine::denied() const { return state_->denied; }
bool TlsEngine::peer_ended() const { return state_->ended; }
std::string& TlsEngine::plain() { return state_->plain; }

Result<std::string> TlsEngine::seal(std::string_view plain) {
  CHECK(established(), "seal() before it is known who listens");
  while (!plain.empty()) {
    const std::size_t size = std::min(plain.size(), kRecordBytes);
    ERR_clear_error();
    std::size_t written = 0;
    if (SSL_write_ex(state_->ssl.get(), plain.data(), size, &written) != 1) {
      state_->failed = true;
      return openssl_tls_error(Errc::system, "TLS cannot encrypt");
    }
    plain.remove_prefix(written);
  }
  return take_output();
}

std::string TlsEngine::take_output() {
  BIO* out = SSL_get_wbio(state_->ssl.get());
  std::string bytes(BIO_ctrl_pending(out), '\0');
  if (!bytes.empty()) {
    const int got = BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  }
  if (state_->failed && state_->context->is_server) bytes += std::exchange(state_->refusal, std::string());
  return bytes;
}

bool TlsEngine::peer_is(const PeerIdentity& identity) const {
  if (!established() || !state_->context->is_server) return false;
  if (state_->by_key) return state_->peer == identity;  // a key that was asked for and not used proves nothing
  const bool agent = identity.role == PeerRole::agent;
  return contains(state_->names, identity.to_string()) || (agent && contains(state_->names, "dns:" + identity.name));
}

std::string TlsEngine::peer_name() const {
  if (state_->by_key) return printable(state_->peer.to_string());
  if (state_->names.empty()) return "a certificate without names";
  std::string text;
  for (const std::string& name : state_->names) text += (text.empty() ? "" : ", ") + printable(name);
  return text;
}

}  // namespace ddprun
