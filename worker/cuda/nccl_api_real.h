#pragma once

#include <memory>

#include "worker/device/nccl_api.h"

namespace ddprun::cuda {

// The installed NCCL. Only inside libddprun_cuda.so.
std::unique_ptr<NcclApi> make_nccl_api();

}  // namespace ddprun::cuda
