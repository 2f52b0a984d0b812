#pragma once

namespace ddprun::internal {
// Prints "file:line: CHECK(condition) failed: message" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* message);
}  // namespace ddprun::internal

// For our own mistakes only, never for input, peers or configuration. `message` is a string literal.
#define CHECK(condition, message) \
  ((condition) ? void(0) : ::ddprun::internal::check_failed(__FILE__, __LINE__, #condition, message))
