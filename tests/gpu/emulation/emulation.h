#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

// CUDA, cuBLAS, cuDNN and NCCL without a GPU, under the libraries' own symbols: libddprun_cuda's sources, linked with
// these instead, run on the host. What the host code asks for is really computed, in plain loops, from the descriptors
// it passed; our own .cu kernels run thread by thread with barriers (grid.cc). What this cannot show: what the real
// libraries refuse, how fast they are, and rounding inside tensor cores.
//
// Rules of CUDA that are checked on the way; breaking one is a line in violations():
//   - the host does not touch device memory (with `guarded` it is not mapped outside of queued work: SIGSEGV)
//   - operands lie in live device memory as far as the call reaches, and nothing is written beside it
//   - all threads of a block come to the same barriers
//   - cuBLAS and cuDNN descriptors fit each other, pointers are as aligned as the plan promised
//   - nothing is created, allocated or freed while `in_step` is set
//   - while the device is `stuck`, nothing is called that waits for all of it
// CUDA's calls that wait for a stream or the device without a deadline do not exist here: code with one does not link.
namespace ddprun::emulated {

enum class Streams {
  eager,  // queued work runs at once
  lazy,   // queued work runs as late as events and waits allow: a forgotten event gives other numbers
};

struct Conduct {
  Streams streams = Streams::eager;
  bool backwards = false;  // threads of a block and blocks of a grid from last to first
  bool in_step = false;    // see above
  int devices = 1;
  std::size_t device_bytes = std::size_t{256} << 20;  // what cudaMalloc has to give; at most 256 MiB
  bool guarded = false;                               // see above; slow
  bool stuck = false;                                 // queued work never runs
};
Conduct& conduct();

// Library calls since the last clear, oldest first: "cublasLtMatmul compute" (with the stream, if it has one; streams
// are named compute, copy and communication in the order of their creation), kernels as "kernel compute".
std::vector<std::string>& calls();
std::vector<std::string>& violations();
// The call fails with `status` when it is made for the (after + 1)th time from now; once.
void fail(const std::string& call, int status, int after = 0);
// Handles, descriptors, events, streams and memory that are alive, "kind: number" each; empty when nothing is.
std::vector<std::string> alive();
// A new device after one that was stuck: what was left on it is gone.
void replace_device();
// Called by the operand check of every matrix product and convolution: "gemm m n k ..." lines for tests of descriptors.
std::vector<std::string>& descriptors();

}  // namespace ddprun::emulated
