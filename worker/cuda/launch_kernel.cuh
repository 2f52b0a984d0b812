#pragma once

// The one place that starts a kernel. Tests compile the .cu files for the host with another header in this one's place
// (tests/gpu/emulation/include), which runs the threads there.
namespace ddprun::engine::gpu {

// Errors of the launch are picked up by the caller with cudaGetLastError.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream, Arguments... arguments) {
  kernel<<<grid, block, 0, stream>>>(arguments...);
}

}  // namespace ddprun::engine::gpu
