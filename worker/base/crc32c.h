#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ddprun {

// CRC-32C (Castagnoli). Continue with the result of the call before: crc32c(b, crc32c(a)) == crc32c(ab).
// Uses the SSE4.2 instruction where the CPU has it.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace ddprun
