#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/result.h"

// What the starting host and the ddprun on another host say to each other over the remote shell's standard input and
// output. Pure.
//
//   node -> starter: kMagic, then frames; what stands before kMagic is the words of a login script.
//   frame: u8 kind, u32 size, `size` bytes; little-endian. A size above kMaxFrame ends the conversation.
//
//   kind  from     bytes
//   1     node     Hello: u16 version, text program version, text host, text identity, text address, u16 free port
//   2     starter  Start: texts argv, texts environment, text folder, u8 stdin, u32 silence ms, u32 patience ms
//   3     starter  Signal: u8 number
//   4     both     Alive: nothing. The starter sends one every alive_every(), the node answers each
//   5     both     Input: bytes for local rank 0's standard input; none: its end. The node answers with none when it
//                  has written them. The next ones come only then: a worker that reads nothing fills no memory
//   6     node     Output: u8 stream (1, 2), bytes
//   7     node     End: u8 exit code, text sentence (why nothing was run; else empty), text report (JSON or empty)
// text: u32 length and bytes. texts: u32 count, then texts.
namespace ddprun::launcher::hosts {

inline constexpr std::string_view kMagic{"\0ddprun-hosts-1\n", 16};
inline constexpr std::uint16_t kVersion = 2;
inline constexpr std::size_t kMaxFrame = 8 << 20;  // an environment of 2 MiB (the kernel's limit) and arguments
inline constexpr std::size_t kMaxNoise = 64 << 10;

// How often a starter says that it lives, and hears that a node does, where `silence` is loss.
constexpr std::chrono::milliseconds alive_every(std::chrono::milliseconds silence) {
  return std::min(silence / 4, std::chrono::milliseconds(3000));
}

struct Hello {
  std::uint16_t version = kVersion;
  std::string program_version;
  std::string host;        // as the node calls itself
  std::string identity;    // the same for two shells that ended on one host
  std::string address;     // by which the remote shell reached it (SSH_CONNECTION); "" = not known
  std::uint16_t port = 0;  // that was free there a moment ago, for the rendezvous
};

struct Start {
  std::vector<std::string> arguments;     // argv; [0] is how ddprun was called
  std::vector<std::string> environment;   // "NAME=value", on top of what the node has
  std::string folder;                     // working directory
  bool input = false;                     // Input frames will come; else standard input is /dev/null
  std::chrono::milliseconds silence{0};   // without a frame for so long: the starter is gone
  std::chrono::milliseconds patience{0};  // between that and SIGKILL
};

struct Signal {
  int number = 0;
};
struct Alive {};
struct Input {
  std::string bytes;
};
struct Output {
  int stream = 1;
  std::string bytes;
};
struct End {
  int code = 0;
  std::string sentence;
  std::string report;
};

using Message = std::variant<Hello, Start, Signal, Alive, Input, Output, End>;

std::string encode(const Message& message);

// Bytes as they come -> messages.
class FrameReader {
 public:
  // expects_magic: the other side is a node behind a remote shell.
  explicit FrameReader(bool expects_magic) : found_magic_(!expects_magic) {}

  void feed(std::string_view bytes) { held_ += bytes; }
  // nullopt: nothing whole is there yet. Errors: malformed; nothing more may be read then.
  Result<std::optional<Message>> next();
  // What came before kMagic (all that came, as long as it has not), at most kMaxNoise bytes.
  const std::string& noise() const { return found_magic_ ? noise_ : held_; }

 private:
  bool found_magic_;
  std::string held_, noise_;
  std::size_t read_ = 0;  // of held_
};

}  // namespace ddprun::launcher::hosts
