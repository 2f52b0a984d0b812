// A grid on one host thread. The threads of a block have stacks of their own and change at barriers, so that a missing
// __syncthreads() or one that not all threads reach shows. Kernels that were seen to have no barrier run as a plain
// loop afterwards.
#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>

#include "tests/gpu/emulation/device.h"

namespace ddprun::emulated {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Place {
  Index thread, block, block_dim, grid_dim;
};

namespace {

constexpr std::size_t kStackBytes = 64 << 10;
constexpr unsigned kMaxThreads = 1024;

// ucontext makes the stack, setjmp changes between threads: swapcontext would make two system calls each time.
struct Thread {
  ucontext_t context{};
  jmp_buf here;
  std::unique_ptr<char[]> stack;
  Index at;
  bool ended = false;
};

struct Grid {
  Place place;
  std::array<Thread, kMaxThreads> threads;
  ucontext_t start{};  // only to enter a new stack
  jmp_buf scheduler;
  Thread* running = nullptr;  // null: threads run as a plain loop
  const std::function<void()>* body = nullptr;
  unsigned barriers = 0;
  std::map<const void*, bool> has_barrier;  // by kernel
};

Grid& grid() {
  static Grid g;
  return g;
}

void leave(Thread& me) {
  if (_setjmp(me.here) == 0) _longjmp(grid().scheduler, 1);
}

// One stack serves one thread of every block, one block after the other.
void thread_main() {
  while (true) {
    Thread& me = *grid().running;
    (*grid().body)();
    me.ended = true;
    leave(me);
  }
}

void enter(Thread& t) {
  if (_setjmp(grid().scheduler) != 0) return;
  if (t.stack) _longjmp(t.here, 1);
  t.stack = std::make_unique<char[]>(kStackBytes);
  getcontext(&t.context);
  t.context.uc_stack.ss_sp = t.stack.get();
  t.context.uc_stack.ss_size = kStackBytes;
  t.context.uc_link = nullptr;
  makecontext(&t.context, thread_main, 0);
  swapcontext(&grid().start, &t.context);
}

Index index_of(unsigned i, const Index& dim) { return {i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)}; }

void run_threads_with_barriers(unsigned count, bool backwards) {
  Grid& g = grid();
  for (unsigned i = 0; i < count; ++i) {
    Thread& t = g.threads[i];
    t.at = index_of(i, g.place.block_dim);
    t.ended = false;
  }
  while (true) {
    unsigned ended = 0;
    for (unsigned k = 0; k < count; ++k) {
      Thread& t = g.threads[backwards ? count - 1 - k : k];
      if (!t.ended) {
        g.running = &t;
        g.place.thread = t.at;
        enter(t);
      }
      ended += t.ended ? 1 : 0;
    }
    g.running = nullptr;
    if (ended == count) return;
    if (ended != 0) {
      violated("a barrier that " + std::to_string(ended) + " of " + std::to_string(count) + " threads do not reach");
      std::abort();  // the others stay where they are: nothing can go on from here
    }
  }
}

void run_threads(unsigned count, bool backwards) {
  Grid& g = grid();
  for (unsigned k = 0; k < count; ++k) {
    g.place.thread = index_of(backwards ? count - 1 - k : k, g.place.block_dim);
    (*g.body)();
  }
}

void run_grid(const void* kernel, const Index& blocks, const Index& block, const std::function<void()>& body) {
  Grid& g = grid();
  const bool backwards = conduct().backwards;
  const unsigned count = blocks.x * blocks.y * blocks.z, threads = block.x * block.y * block.z;
  g.body = &body;
  g.place.block_dim = block;
  g.place.grid_dim = blocks;
  for (unsigned k = 0; k < count; ++k) {
    g.place.block = index_of(backwards ? count - 1 - k : k, blocks);
    const auto known = g.has_barrier.find(kernel);
    if (known != g.has_barrier.end() && !known->second) {
      run_threads(threads, backwards);
      continue;
    }
    g.barriers = 0;
    run_threads_with_barriers(threads, backwards);
    g.has_barrier[kernel] = g.barriers > 0;
  }
}

}  // namespace

Place& place() { return grid().place; }

void barrier() {
  Grid& g = grid();
  if (g.running == nullptr) std::abort();  // a kernel whose first block had no barrier and another one has
  ++g.barriers;
  leave(*g.running);
}

void launch(const void* kernel, Index blocks, Index block, void* stream, std::function<void()> body) {
  called("kernel", stream);
  const unsigned threads = block.x * block.y * block.z;
  // The limits of compute capability 8 to 10 (CUDA C++ Programming Guide, "Compute Capabilities").
  if (threads == 0 || threads > kMaxThreads || blocks.x == 0 || blocks.x > 2147483647u || blocks.y == 0 ||
      blocks.y > 65535 || blocks.z == 0 || blocks.z > 65535) {
    violated("a launch of " + std::to_string(blocks.x) + " x " + std::to_string(blocks.y) + " blocks of " +
             std::to_string(threads) + " threads");
    return;
  }
  enqueue(stream, [=, body = std::move(body)] { run_grid(kernel, blocks, block, body); });
}

}  // namespace ddprun::emulated
