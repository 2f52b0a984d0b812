#include "common/rdzv_protocol.h"

#include <string.h>  // NOLINT: sigabbrev_np

#include "common/wire.h"

// The opening, and words. Messages: rdzv_codec.cc.
namespace ddprun::rdzv {

// A full page fits into a frame: three names and what else an entry has.
static_assert(kRosterPage * (3 * (4 + kMaxName) + 3 * 8 + 1) + 64 <= kMaxFrame);
static_assert(kMaxPart + 64 <= kMaxFrame);

std::string encode(const Hello& hello) {
  WireWriter w;
  w.raw(kMagic);
  w.u16(hello.version);
  w.u8(static_cast<std::uint8_t>(hello.kind));
  return std::move(w).take();
}

std::string encode(const HelloReply& reply) {
  WireWriter w;
  w.raw(kMagic);
  w.u16(reply.version);
  w.u8(reply.accepted ? 1 : 0);
  w.text(std::string_view(reply.why).substr(0, kMaxHelloWhy));
  return std::move(w).take();
}

Result<Hello> decode_hello(std::string_view bytes) {
  WireReader r(bytes);
  if (r.raw(kMagic.size()) != kMagic) return Error(Errc::malformed, "the opening is not that of a ddprun agent");
  Hello hello;
  hello.version = r.u16();
  const std::uint8_t kind = r.u8();
  if (!r.finished()) return Error(Errc::malformed, "the opening is cut short");
  // Of other versions only magic and version are known; the caller refuses them before it looks at the kind.
  if (hello.version == kVersion && kind != 1 && kind != 2) {
    return Error(Errc::malformed, "unknown kind of peer " + std::to_string(kind));
  }
  hello.kind = static_cast<PeerKind>(kind);
  return hello;
}

Result<HelloReplyHead> decode_hello_reply_head(std::string_view bytes) {
  WireReader r(bytes);
  if (r.raw(kMagic.size()) != kMagic) return Error(Errc::malformed, "it does not speak the ddprun agent protocol");
  HelloReplyHead head;
  head.version = r.u16();
  head.accepted = r.u8() == 1;
  head.why_bytes = r.u32();
  if (!r.finished() || head.why_bytes > kMaxHelloWhy) return Error(Errc::malformed, "its opening reply is malformed");
  return head;
}

std::string version_mismatch(std::uint16_t server, std::uint16_t client) {
  return "the rendezvous speaks version " + std::to_string(server) + " of the agent protocol, the agent version " +
         std::to_string(client) + ": install the same ddprun on every node";
}

std::string describe(const FailureRecord& failure) {
  if (!failure.message.empty()) return failure.message;
  std::string text = "rank " + std::to_string(failure.rank.value) + " on " + failure.host + " ended with ";
  if (failure.signal == 0) return text + "exit code " + std::to_string(failure.exit_code);
  text += "signal " + std::to_string(failure.signal);
  if (const char* name = ::sigabbrev_np(failure.signal)) text += std::string(" (SIG") + name + ")";
  return text;
}

}  // namespace ddprun::rdzv
