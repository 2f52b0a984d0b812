#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace ddprun {

// What kind of failure it was; the sentence in Error says the rest.
enum class Errc {
  timed_out,         // a deadline passed; the message names the phase, the limit and what was missing
  peer_closed,       // EOF, reset or broken pipe: the other side is gone
  refused,           // nobody listens, or the peer said no
  cancelled,         // stopped from our own side
  malformed,         // bytes or text that do not parse
  invalid_argument,  // a value that parses but cannot be used
  not_found,         // a file, key, program or host that does not exist
  not_executable,    // a program that exists but may not or cannot be executed
  unsupported,       // the kernel, or a sandbox (seccomp profile), lacks a call; a retry cannot help
  exhausted,         // a limit on processes, descriptors or memory is reached; a retry can help
  system,            // the operating system said no (errno text in the message)
};

std::string_view to_string(Errc code);

// A failure that the outside world caused. Cheap to move; each layer that knows more puts a sentence in front.
class Error {
 public:
  Error(Errc code, std::string message) : code_(code), message_(std::move(message)) {}

  // Error from errno: "what: No such file or directory". ENOENT becomes not_found, ECONNREFUSED refused,
  // EPIPE/ECONNRESET peer_closed, ETIMEDOUT timed_out, ECANCELED cancelled, EINVAL invalid_argument, ENOSYS
  // unsupported, EMFILE/ENFILE/ENOMEM exhausted, all else system.
  static Error from_errno(int error_number, std::string what);

  Errc code() const { return code_; }
  const std::string& message() const { return message_; }

  // "prefix: message"
  Error with_context(std::string_view prefix) &&;
  Error with_context(std::string_view prefix) const&;

 private:
  Errc code_;
  std::string message_;
};

}  // namespace ddprun
