#include "client/ddprun_store.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/store_client.h"

struct ddprun_store {
  ddprun::StoreClient client;
  std::string error;
};

namespace {

using namespace ddprun;

int code_of(Errc code) {
  switch (code) {
    case Errc::timed_out:
      return DDPRUN_STORE_TIMED_OUT;
    case Errc::peer_closed:
      return DDPRUN_STORE_CLOSED;
    case Errc::refused:
    case Errc::malformed:
    case Errc::not_found:
      return DDPRUN_STORE_REFUSED;
    case Errc::invalid_argument:
      return DDPRUN_STORE_INVALID;
    default:
      return DDPRUN_STORE_FAILED;
  }
}

// No exception may leave into C: what is left is memory that cannot be had.
template <typename Call>
int guarded(ddprun_store* store, Call call) {
  if (store == nullptr) return DDPRUN_STORE_INVALID;
  try {
    store->error.clear();
    const Result<void> done = call();
    if (done) return DDPRUN_STORE_OK;
    store->error = done.error().message();
    return code_of(done.error().code());
  } catch (const std::exception& thrown) {
    store->error = thrown.what();
    return DDPRUN_STORE_FAILED;
  }
}

TimePoint deadline_after(std::int64_t timeout_ms) {
  // Long enough for everybody, and far from overflow.
  constexpr std::int64_t kMost = std::int64_t{1000} * 3600 * 24 * 365;
  return SteadyClock::now() + std::chrono::milliseconds(std::clamp<std::int64_t>(timeout_ms, 0, kMost));
}

Result<Endpoint> endpoint_of(const char* host, std::uint16_t port) {
  if (host != nullptr) {
    if (host[0] == '\0' || port == 0)
      return Error(Errc::invalid_argument, "ddprun_store_connect: empty host or port 0");
    return Endpoint{host, port};
  }
  const char* const address = std::getenv("MASTER_ADDR");
  const char* const text = std::getenv("MASTER_PORT");
  std::uint16_t number = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), number);
  if (address == nullptr || address[0] == '\0' || number == 0) {
    return Error(Errc::invalid_argument,
                 "MASTER_ADDR and MASTER_PORT are not set (to a host and a port): start this program with ddprun, or "
                 "give the host");
  }
  return Endpoint{address, number};
}

}  // namespace

extern "C" {

int ddprun_store_connect(const char* host, uint16_t port, int64_t timeout_ms, ddprun_store** store, char* error,
                         size_t error_size) {
  std::string sentence;
  int code = DDPRUN_STORE_FAILED;
  if (store == nullptr) return DDPRUN_STORE_INVALID;
  *store = nullptr;
  try {
    auto endpoint = endpoint_of(host, port);
    if (!endpoint) {
      sentence = endpoint.error().message();
      code = DDPRUN_STORE_INVALID;
    } else {
      StoreClientOptions options;
      options.endpoint = std::move(*endpoint);
      options.connect_timeout =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline_after(timeout_ms) - SteadyClock::now());
      auto client = StoreClient::connect(std::move(options));
      if (client) {
        *store = new ddprun_store{std::move(*client), ""};
        return DDPRUN_STORE_OK;
      }
      sentence = client.error().message();
      code = code_of(client.error().code());
    }
  } catch (const std::exception& thrown) {
    sentence = thrown.what();
  }
  if (error != nullptr && error_size > 0) {
    const std::size_t size = std::min(sentence.size(), error_size - 1);
    std::memcpy(error, sentence.data(), size);
    error[size] = '\0';
  }
  return code;
}

void ddprun_store_close(ddprun_store* store) { delete store; }

const char* ddprun_store_error(const ddprun_store* store) { return store == nullptr ? "" : store->error.c_str(); }

int ddprun_store_set(ddprun_store* store, const char* key, const void* value, size_t size) {
  return guarded(store, [&]() -> Result<void> {
    if (key == nullptr || (value == nullptr && size > 0)) return Error(Errc::invalid_argument, "set: NULL");
    return store->client.set_confirmed(key, std::string_view(static_cast<const char*>(value), size));
  });
}

int ddprun_store_get(ddprun_store* store, const char* key, void* value, size_t* size, int64_t timeout_ms) {
  bool too_small = false;
  const int code = guarded(store, [&]() -> Result<void> {
    if (key == nullptr || size == nullptr || (value == nullptr && *size > 0)) {
      return Error(Errc::invalid_argument, "get: NULL");
    }
    auto got = store->client.get(key, deadline_after(timeout_ms));
    if (!got) return std::move(got).error();
    too_small = got->size() > *size;
    if (!too_small && !got->empty()) std::memcpy(value, got->data(), got->size());
    *size = got->size();
    return {};
  });
  if (code == DDPRUN_STORE_OK && too_small) {
    store->error = std::string("get ") + key + ": the value has " + std::to_string(*size) + " bytes";
    return DDPRUN_STORE_TOO_SMALL;
  }
  return code;
}

int ddprun_store_add(ddprun_store* store, const char* key, int64_t amount, int64_t* result) {
  return guarded(store, [&]() -> Result<void> {
    if (key == nullptr) return Error(Errc::invalid_argument, "add: NULL");
    auto sum = store->client.add(key, amount);
    if (!sum) return std::move(sum).error();
    if (result != nullptr) *result = *sum;
    return {};
  });
}

int ddprun_store_wait(ddprun_store* store, const char* const* keys, size_t count, int64_t timeout_ms) {
  return guarded(store, [&]() -> Result<void> {
    std::vector<std::string> wanted;
    for (std::size_t i = 0; keys != nullptr && i < count; ++i) {
      if (keys[i] == nullptr) return Error(Errc::invalid_argument, "wait: a key is NULL");
      wanted.emplace_back(keys[i]);
    }
    if (wanted.empty()) return Error(Errc::invalid_argument, "wait: no keys");
    return store->client.wait(wanted, deadline_after(timeout_ms));
  });
}

}  // extern "C"
