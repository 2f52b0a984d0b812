#include "worker/kernels/host_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace ddprun::engine {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMapped = 2 * kHugePage;  // smaller blocks come from the heap

// Lies in front of the block.
struct alignas(kAlign) Header {
  std::size_t mapped_bytes;  // 0: from the heap
};
static_assert(sizeof(Header) == kAlign);

}  // namespace

void* allocate_host(std::size_t size_bytes) {
  if (size_bytes > SIZE_MAX - 2 * kHugePage) return nullptr;
  const std::size_t wanted = sizeof(Header) + size_bytes;
  if (size_bytes < kMapped) {
    const std::size_t size = (wanted + kAlign - 1) / kAlign * kAlign;
    void* memory = std::aligned_alloc(kAlign, size);
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0, size);
    return static_cast<Header*>(memory) + 1;
  }
  // Whole huge pages: the last one would otherwise be made of small ones.
  const std::size_t size = (wanted + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, size, MADV_HUGEPAGE);  // a wish: without it the pages are small
  auto* header = static_cast<Header*>(memory);
  header->mapped_bytes = size;
  return header + 1;
}

void release_host(void* memory) {
  if (memory == nullptr) return;
  Header* header = static_cast<Header*>(memory) - 1;
  if (header->mapped_bytes == 0) {
    std::free(header);
  } else {
    ::munmap(header, header->mapped_bytes);
  }
}

}  // namespace ddprun::engine
