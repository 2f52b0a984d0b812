#include "worker/comm/fork_mark.h"

#include <sys/mman.h>

#include <new>

#include "common/check.h"

namespace ddprun::comm {
namespace {
constexpr std::size_t kPage = 4096;
}

ForkMark::ForkMark() {
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED, "no memory for one page");
  mark_ = new (page) std::atomic<unsigned>(1);
  CHECK(::madvise(page, kPage, MADV_WIPEONFORK) == 0, "madvise(MADV_WIPEONFORK), Linux 4.14");
}

ForkMark::~ForkMark() { ::munmap(mark_, kPage); }

}  // namespace ddprun::comm
