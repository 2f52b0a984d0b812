#pragma once

#include <cstdint>
#include <string>

#include "worker/data/dataset.h"

namespace ddprun::trainer {

// What tells one data set from another at little cost: shapes and names, and a checksum of three samples (data in
// memory) or of the file names (pictures).
std::string fingerprint(const data::Dataset& dataset, const std::string& format, std::uint64_t seed);

}  // namespace ddprun::trainer
