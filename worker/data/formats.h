#pragma once

#include <memory>

#include "common/result.h"
#include "worker/data/dataset.h"

// One reader per format; open_dataset() chooses.
namespace ddprun::data {

// Rows of numbers separated by commas; the last one is the target, unless options.target_column says another. A first
// row that is not numbers is a heading. Targets that are words are classes, numbered in their alphabetical order.
Result<std::unique_ptr<Dataset>> open_csv(const DatasetOptions& options);
// MNIST's format, plain or gzip: u8 images (N, H, W) and u8 labels (N). Pixels become value / 255, then normalised.
Result<std::unique_ptr<Dataset>> open_idx(const DatasetOptions& options);
// numpy arrays (N, ...) of inputs and (N) or (N, K) of targets, C order; f4 f8 i1 i2 i4 i8 u1 u2 little endian.
// u1 inputs become value / 255. Images are (N, H, W, C).
Result<std::unique_ptr<Dataset>> open_npy(const DatasetOptions& options);
// CIFAR-10 and CIFAR-100 in their "binary version".
Result<std::unique_ptr<Dataset>> open_cifar(const DatasetOptions& options);
// One folder a class, classes numbered by sorted name (as torchvision's ImageFolder); JPEG and PNG. Hidden folders and
// files, and pictures of other kinds, are left out and named by left_out().
Result<std::unique_ptr<Dataset>> open_image_folder(const DatasetOptions& options);
// llm.c's .bin (256 i32 of header, then u16) or nanoGPT's (bare u16, refused if it looks wider). Sample i of length T:
// tokens [iT, iT+T].
Result<std::unique_ptr<Dataset>> open_tokens(const DatasetOptions& options);
// Numbers made from (seed 0, sample): for speed tests. A learnable label is hidden in them.
Result<std::unique_ptr<Dataset>> open_synthetic(const DatasetOptions& options);

}  // namespace ddprun::data
