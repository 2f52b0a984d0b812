#include "worker/ranks/ranks.h"

#include <chrono>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "worker/comm/factory.h"
#include "worker/ranks/agree.h"
#include "worker/ranks/run_error.h"

namespace ddprun::trainer {

Result<void> Ranks::check_on_all(Result<void> mine) {
  if (!mine && device_ != nullptr) {
    if (auto good = device_->status(); !good) mine = std::move(good);
  }
  Agreement agreement = agree(*communicator_, std::move(mine));
  if (agreement.result || error_is_said_) return std::move(agreement.result);
  error_is_said_ = true;
  if (agreement.said_elsewhere) {
    const TimePoint give_up = SteadyClock::now() + kTimeForTheSpeaker;
    while (stop_.requested() == 0 && SteadyClock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } else {
    say_error(env_, agreement.result.error());
  }
  return std::move(agreement.result);
}

Error Ranks::fail_everywhere(const std::string& message) {
  Error error(Errc::invalid_argument, message);
  auto told = check_on_all(is_root() ? Result<void>(error) : Result<void>());
  return told ? error : std::move(told).error();
}

Result<std::unique_ptr<Ranks>> connect_ranks(const DdpConfig& config, const WorkerEnv& env, const StopSignal& stop) {
  comm::CommOptions options;
  auto backend = comm::parse_backend(config.backend);
  if (!backend) return std::move(backend).error();
  options.backend = *backend;
  options.timeout = config.timeout;
  options.connect_timeout = config.connect_timeout;
  auto communicator = comm::make_communicator(env, options);
  if (!communicator) return std::move(communicator).error();
  return std::make_unique<Ranks>(std::move(*communicator), env, stop);
}

}  // namespace ddprun::trainer
