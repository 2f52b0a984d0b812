// What strangers may send to a TLS port, and a lying server to a client. First byte: even = to a server, odd = to a
// client; its other bits = how many bytes come at a time. Nobody is ever known, nothing is ever decrypted, and no more
// is kept than is allowed to strangers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/tls_engine.h"

using namespace ddprun;

static void require(bool condition) {
  if (!condition) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const Key secret(std::string(32, 'k'));
  static const auto server = *TlsContext::server([](const PeerIdentity& identity) -> Result<Secrets> {
    if (identity.name == "job7") return Secrets{secret};
    return Error(Errc::not_found, "nothing of that name");
  });
  static const auto client = *TlsContext::client({PeerRole::agent, "job7"}, {secret});
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t step = static_cast<std::size_t>(data[0] >> 1) * 16 + 1;
  auto engine = TlsEngine::make((data[0] & 1) != 0 ? client : server);
  require(engine.has_value());
  std::size_t taken = 0;
  while (!bytes.empty()) {
    const auto part = bytes.substr(0, step);
    bytes.remove_prefix(part.size());
    const auto state = engine->receive(part);
    require(!engine->established() && engine->plain().empty());
    require(engine->take_output().size() < 16384);
    if (!state) {
      require(!state.error().message().empty());
      require(state.error().message().size() < 2 * kMaxRefusal + 512);
      break;
    }
    taken += part.size();
    require(taken <= kMaxHandshakeBytes + kMaxRefusal + step);
  }
  require(!engine->at_end().message().empty());
  return 0;
}
