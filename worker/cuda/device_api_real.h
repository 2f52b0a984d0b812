#pragma once

#include <memory>

#include "worker/device/device_api.h"

namespace ddprun::cuda {

// The CUDA runtime itself. Only in libddprun_cuda.so.
std::unique_ptr<DeviceApi> make_device_api();

}  // namespace ddprun::cuda
