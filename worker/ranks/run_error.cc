#include "worker/ranks/run_error.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/exit_code.h"
#include "common/log.h"

namespace ddprun::trainer {

int exit_code_of(const Error& error) {
  switch (error.code()) {
    case Errc::malformed:
    case Errc::invalid_argument:
    case Errc::not_found:
      return exit_code::kPermanent;
    default:
      return exit_code::kFailure;
  }
}

void say_error(const WorkerEnv& env, const Error& error) {
  std::fprintf(stderr, "trainer: rank %lld: %s\n", static_cast<long long>(env.rank.value), error.message().c_str());
  write_error_file(env.error_file, error.message(), exit_code_of(error));
}

void write_error_file(const std::string& path, const std::string& message, int exit_code) {
  if (path.empty()) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json json;
  json["message"]["message"] = message;
  json["message"]["errorCode"] = exit_code;
  json["message"]["extraInfo"]["timestamp"] =
      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  std::ofstream file(path);
  file << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  if (!file.good()) log_warning("cannot write the error file {}", path);
}

}  // namespace ddprun::trainer
