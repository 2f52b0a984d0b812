#include "rendezvous/watchdog.h"

#include <charconv>
#include <string>

#include "rendezvous/sd_notify.h"

namespace ddprun::rendezvous {
namespace {

std::optional<long long> number(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  long long value = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end || value <= 0) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::chrono::microseconds> watchdog_limit(const EnvLookup& env, int own_pid) {
  if (const auto pid = env("WATCHDOG_PID"); pid && number(pid) != own_pid) return std::nullopt;
  const auto limit = number(env("WATCHDOG_USEC"));
  if (!limit) return std::nullopt;
  return std::chrono::microseconds(*limit);
}

Watchdog::Watchdog(boost::asio::io_context& io, std::optional<std::chrono::microseconds> limit) : timer_(io) {
  if (!limit) return;
  period_ = *limit / 2;
  arm();
}

void Watchdog::arm() {
  timer_.expires_after(period_);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;  // we stop
    sd_notify("WATCHDOG=1");
    arm();
  });
}

}  // namespace ddprun::rendezvous
