#pragma once

#include <cstddef>

namespace ddprun::engine {

// Zeroed memory, 64-byte aligned; null when there is not enough. A large block is mapped and touched by nobody before
// its first use, so it costs nothing at start, and comes in huge pages where the kernel gives them.
void* allocate_host(std::size_t size_bytes);
void release_host(void* memory);  // null: nothing happens

}  // namespace ddprun::engine
