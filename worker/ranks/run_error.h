#pragma once

#include <chrono>
#include <string>

#include "common/result.h"
#include "common/worker_env.h"

namespace ddprun::trainer {

// A launcher stops all ranks when the first one ends: the others give the one that says why this long, at most.
constexpr std::chrono::seconds kTimeForTheSpeaker{5};

// Tells the user, and the launcher by torch elastic's error file (TORCHELASTIC_ERROR_FILE), why this rank ends.
void say_error(const WorkerEnv& env, const Error& error);
void write_error_file(const std::string& path, const std::string& message, int exit_code);
int exit_code_of(const Error& error);

}  // namespace ddprun::trainer
