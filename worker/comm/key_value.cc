#include "worker/comm/key_value.h"

#include <chrono>
#include <utility>

#include "common/store_client.h"

namespace ddprun::comm {
namespace {

class StoreKeyValue final : public KeyValue {
 public:
  explicit StoreKeyValue(StoreClient client) : client_(std::move(client)) {}

  Result<void> set(std::string_view key, std::string_view value) override { return client_.set_confirmed(key, value); }
  Result<std::string> get(std::string_view key, TimePoint deadline) override { return client_.get(key, deadline); }
  Result<void> erase(std::string_view key) override {
    auto ok = client_.delete_key(key);
    if (!ok) return ok.error();
    return {};
  }
  Result<bool> has(std::string_view key) override { return client_.check(key); }

 private:
  StoreClient client_;
};

}  // namespace

Result<bool> KeyValue::has(std::string_view key) {
  auto value = get(key, SteadyClock::now());
  if (!value && value.error().code() != Errc::timed_out) return std::move(value).error();
  return static_cast<bool>(value);
}

Result<std::unique_ptr<KeyValue>> connect_store(const Endpoint& endpoint, TimePoint deadline) {
  StoreClientOptions options;
  options.endpoint = endpoint;
  options.prefix = "";
  options.connect_timeout = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
  auto client = StoreClient::connect(std::move(options));
  if (!client) return client.error();
  return std::unique_ptr<KeyValue>(std::make_unique<StoreKeyValue>(std::move(client).value()));
}

}  // namespace ddprun::comm
