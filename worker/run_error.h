#pragma once

#include <string>

#include "common/result.h"
#include "common/worker_env.h"

namespace ddprun::trainer {

// Tells the user, and the launcher by torch elastic's error file (TORCHELASTIC_ERROR_FILE), why this rank ends.
void say_error(const WorkerEnv& env, const Error& error);
void write_error_file(const std::string& path, const std::string& message, int exit_code);
int exit_code_of(const Error& error);

}  // namespace ddprun::trainer
