// Decoder, sessions and core of the store under any bytes in any pieces from up to four clients.
//
// An input is a list of steps: a byte (bits 0-1: connection, bit 2: it closes, bit 3: piece by piece), a u16 length and
// that many bytes. Everything is done twice: as given, and with each step's bytes one at a time; both must say the
// same.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "common/check.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/store_session.h"

namespace {

using namespace ddprun;
using namespace ddprun::rendezvous;

constexpr std::size_t kClients = 4;

class World {
 public:
  World() {
    // Small, so that the bounds are met.
    limits_.decoder.max_key_bytes = 64;
    limits_.decoder.max_value_bytes = 512;
    limits_.decoder.max_keys = 16;
    limits_.decoder.max_list_bytes = 256;
    limits_.max_store_bytes = 16 * 1024;
    limits_.max_unread_bytes = 1024;
  }

  void send(std::size_t connection, std::string_view bytes, std::size_t piece) {
    for (std::size_t at = 0; at < bytes.size(); at += piece) feed(connection, bytes.substr(at, piece));
  }

  void close(std::size_t connection) {
    closed_[connection] = true;
    sessions_[connection].reset();
    store_.forget(static_cast<ClientId>(connection));
  }

  // What every client was told, and what is stored.
  std::string end() {
    std::string all;
    for (std::size_t i = 0; i < kClients; ++i) {
      all += out_[i];
      all += closed_[i] ? "closed;" : "open;";
    }
    all += std::to_string(store_.num_keys()) + "," + std::to_string(store_.bytes()) + "," +
           std::to_string(store_.waiting()) + "," + std::to_string(store_.queue_items());
    for (std::size_t i = 0; i < kClients; ++i) store_.forget(static_cast<ClientId>(i));
    CHECK(store_.waiting() == 0, "a forgotten client waits");
    std::size_t keys = 0;
    std::size_t key_bytes = 0;
    store_.list_keys([&](std::string_view key) {
      ++keys;
      key_bytes += key.size() + store_.get(key).size() + Store::kKeyOverhead;
    });
    CHECK(keys == store_.num_keys(), "num_keys and list_keys differ");
    CHECK(store_.queue_items() > 0 || store_.bytes() == key_bytes, "bytes are miscounted");
    store_.clear();
    CHECK(store_.bytes() == 0, "clear() leaves bytes");
    return all;
  }

 private:
  void feed(std::size_t connection, std::string_view bytes) {
    if (closed_[connection]) return;
    auto& session = sessions_[connection];
    const auto id = static_cast<ClientId>(connection);
    if (!session) session = std::make_unique<StoreSession>(store_, id, limits_, counts_);
    StoreSession::Verdict verdict = StoreSession::Verdict::ok;
    do {
      Store::Wakes wakes;
      std::string& out = out_[connection];
      const std::size_t before = out.size();
      verdict = session->feed(bytes, 0, out, wakes);
      out += session->take_tail();
      // One answer may go over the bound: at most a list of all keys.
      CHECK(out.size() - before <= 1024 + 2 * 16 * 1024, "answers are not bounded");
      for (const ClientId woken : wakes) {
        CHECK(woken != id && woken < kClients && !closed_[woken], "a client was woken that cannot wait");
        out_[woken].push_back(kStoreStopWaiting);
      }
      bytes = {};
    } while (verdict == StoreSession::Verdict::ok && session->paused());
    CHECK(session->buffered() < 4096 + 2 * 1024, "a half request is kept without bound");
    if (verdict != StoreSession::Verdict::ok) {
      CHECK(!session->why().empty(), "closed without a reason");
      close(connection);
    }
  }

  StoreSessionLimits limits_;
  Store store_;
  std::array<std::uint64_t, kStoreOpCount> counts_{};
  std::array<std::unique_ptr<StoreSession>, kClients> sessions_;
  std::array<std::string, kClients> out_;
  std::array<bool, kClients> closed_{};
};

std::string run(std::string_view input, bool bytewise) {
  World world;
  while (input.size() >= 3) {
    const auto what = static_cast<unsigned char>(input[0]);
    std::uint16_t length = 0;
    std::memcpy(&length, input.data() + 1, sizeof length);
    input.remove_prefix(3);
    const std::string_view bytes = input.substr(0, length);
    input.remove_prefix(bytes.size());
    const std::size_t connection = what & 3u;
    world.send(connection, bytes, bytewise ? 1 : (what & 8u) != 0 ? 3 : 65536);
    if ((what & 4u) != 0) world.close(connection);
  }
  return world.end();
}

// LIST_KEYS answers in the order of a seeded hash, which differs between two stores: such inputs are run, not compared.
bool may_list(std::string_view input) {
  return input.find(static_cast<char>(StoreOp::list_keys)) != std::string_view::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string whole = run(input, false);
  const std::string pieces = run(input, true);
  if (!may_list(input)) CHECK(whole == pieces, "the answer depends on the segmentation");
  return 0;
}
