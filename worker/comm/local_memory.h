#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace ddprun::comm {

// Page-aligned, zeroed blocks of this process for allocate() where nothing needs to be shared.
class LocalMemory {
 public:
  // nullptr: there is no memory.
  std::byte* allocate(std::size_t size_bytes) {
    constexpr std::size_t kPage = 4096;
    const std::size_t size = size_bytes == 0 ? kPage : (size_bytes + kPage - 1) / kPage * kPage;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, size));
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0, size);
    blocks_.emplace_back(memory);
    return memory;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
};

}  // namespace ddprun::comm
