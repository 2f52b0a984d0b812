// What a secret costs: the handshake of one agent (both ends), and a heartbeat with its answer, beside the bytes alone.
#include <benchmark/benchmark.h>

#include <string>
#include <utility>

#include "common/tls_engine.h"

namespace ddprun {
namespace {

struct Pair {
  TlsEngine client, server;
};

Pair pair_of(const std::shared_ptr<const TlsContext>& a, const std::shared_ptr<const TlsContext>& b) {
  Pair pair{std::move(*TlsEngine::make(a)), std::move(*TlsEngine::make(b))};
  while (!pair.client.established() || !pair.server.established()) {
    const std::string up = pair.client.take_output();
    if (!up.empty() && !pair.server.receive(up)) std::abort();
    const std::string down = pair.server.take_output();
    if (!down.empty() && !pair.client.receive(down)) std::abort();
  }
  return pair;
}

std::shared_ptr<const TlsContext> client_context() {
  return *TlsContext::client({PeerRole::agent, "job7"}, {Key(std::string(32, 'k'))});
}
std::shared_ptr<const TlsContext> server_context() {
  return *TlsContext::server([](const PeerIdentity&) -> Result<Secrets> { return Secrets{Key(std::string(32, 'k'))}; });
}

void Handshake(benchmark::State& state) {
  const auto a = client_context(), b = server_context();
  for (auto _ : state) benchmark::DoNotOptimize(pair_of(a, b));
}
BENCHMARK(Handshake)->Unit(benchmark::kMicrosecond);

void Heartbeat(benchmark::State& state) {
  Pair pair = pair_of(client_context(), server_context());
  const std::string beat(18, 'b'), answer(17, 'a');
  for (auto _ : state) {
    if (!pair.server.receive(*pair.client.seal(beat)) || !pair.client.receive(*pair.server.seal(answer))) std::abort();
    pair.server.plain().clear();
    pair.client.plain().clear();
  }
}
BENCHMARK(Heartbeat)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ddprun

BENCHMARK_MAIN();
