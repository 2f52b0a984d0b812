// In this program the backend is not loaded: it is linked in, over the emulated libraries.
#include "worker/device/backend.h"

namespace ddprun::cuda {

Result<DeviceBackend*> load_backend() { return ddprun_cuda_backend_v3(); }

}  // namespace ddprun::cuda
