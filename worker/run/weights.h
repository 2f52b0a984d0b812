#pragma once

#include <string>

#include "common/result.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/engine/parameter_store.h"
#include "worker/optim/optimizer.h"

namespace ddprun::trainer {

// A checkpoint's tensors: exactly the store's names, shapes and types. Errors name the tensor.
Result<void> restore_model(const checkpoint::SafetensorsFile& file, engine::ParameterStore& store);
Result<void> restore_optimizer(const checkpoint::SafetensorsFile& file, optim::Optimizer& optimizer);
std::string optimizer_tensor_name(const optim::StateTensor& tensor);  // "exp_avg.fc1.weight"

// Initial weights from a file that something else wrote (torchvision, Hugging Face): F64, F32, F16 or BF16, with or
// without the prefix "transformer.", and with those that DistributedDataParallel and torch.compile add ("module.",
// "_orig_mod."); other tensors in the file are passed over. All or nothing is taken. path: for the errors, which name
// what is missing.
Result<void> load_weights(const checkpoint::SafetensorsFile& file, const std::string& path,
                          engine::ParameterStore& store);

checkpoint::TensorType tensor_type(engine::DType dtype);

}  // namespace ddprun::trainer
