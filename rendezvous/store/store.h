#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ddprun::rendezvous {

// A connection, as the store knows it: a small number that its shell chooses and uses again after forget().
using ClientId = std::uint32_t;

// The key-value service of c10d: keys, counters, queues, waiters, barriers. Decides; never does: no I/O, no clock.
//
// Differs from torch's libuv server where that one errs (tcpstore-protocol §17): a wait ends only when all its keys are
// there at that moment, a compare_set that stores nothing wakes nobody, a waiter that was released is registered
// nowhere.
//
// Cost: a request with one key does one hash look-up. A waiter is registered at one missing key at a time, whatever the
// number of keys it waits for, so leaving is O(1) and setting a key costs its own waiters only.
class Store {
 public:
  Store();
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Calls that can end waits append the clients to tell "stop waiting" to `wakes`, first come first.
  using Wakes = std::vector<ClientId>;

  void set(std::string_view key, std::string_view value, Wakes& wakes);
  void append(std::string_view key, std::string_view value, Wakes& wakes);
  // nullopt: the stored value is not a number (read as stoll reads it). The sum wraps at 64 bits.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t amount, Wakes& wakes);
  // The value after the call; for a missing key with another expected value than "": `expected`. The view lives until
  // the next change (or as long as `expected`).
  std::string_view compare_set(std::string_view key, std::string_view expected, std::string_view desired, Wakes& wakes);
  std::string_view get(std::string_view key) const;  // empty when missing; lives until the next change
  // A key is there if it has a value or is a queue with something in it.
  bool check(std::span<const std::string_view> keys) const;
  bool delete_key(std::string_view key);  // wakes nobody
  std::size_t num_keys() const { return keys_; }
  // Calls visit(key) for each key; queues are no keys.
  template <typename Visit>
  void list_keys(Visit visit) const {
    for (const auto& [key, slot] : slots_) {
      if (slot.present) visit(std::string_view(key));
    }
  }

  void queue_push(std::string_view key, std::string_view value, Wakes& wakes);  // wakes at most one
  // Length before the pop, and the item if that was > 0.
  std::size_t queue_pop(std::string_view key, std::string& item);
  std::size_t queue_len(std::string_view key) const;

  // True: all keys are there (or none was named). False: `client` waits; an earlier wait of it is forgotten.
  bool wait(ClientId client, std::span<const std::string_view> keys);
  enum class Arrival { released, waiting, not_a_number };
  Arrival barrier(ClientId client, std::string_view key, std::int64_t world_size, Wakes& wakes);
  // Ends the client's wait, if any; what a barrier counted stays counted. Also to be called when it goes.
  void forget(ClientId client);

  void clear();  // everything, waiters too

  std::size_t bytes() const { return bytes_; }  // keys, values and queue items with an estimate of their overhead
  std::size_t waiting() const { return waiting_; }
  std::size_t queue_items() const { return queue_items_; }
  // What a new key costs beside its bytes: hash node, value header (measured with malloc: 128 to 160).
  static constexpr std::size_t kKeyOverhead = 144;

 private:
  struct Waiter;
  struct Slot {
    std::string value;
    std::unique_ptr<std::deque<std::string>> queue;
    Waiter* first = nullptr;  // who is registered here, oldest first
    Waiter* last = nullptr;
    std::uint32_t named = 0;  // how often waits name this key
    bool present = false;
    bool ready() const { return present || (queue && !queue->empty()); }
  };
  // Seeded: a client cannot choose keys that all fall into one bucket.
  struct Hash {
    using is_transparent = void;
    std::uint64_t seed;
    std::size_t operator()(std::string_view text) const noexcept;
  };
  using Slots = std::unordered_map<std::string, Slot, Hash, std::equal_to<>>;
  using Node = Slots::value_type;
  // Stands for a client in a wait. `next` and `previous` link it into the list of the key it is registered at.
  struct Waiter {
    Waiter* previous = nullptr;
    Waiter* next = nullptr;
    Node* at = nullptr;  // null: not waiting
    ClientId client = 0;
    bool barrier = false;
    std::uint32_t index = 0;   // of `at` in `nodes`
    std::vector<Node*> nodes;  // all keys of the wait
  };

  Node& slot(std::string_view key);  // made if missing
  Node* find(std::string_view key);
  const Slot* find(std::string_view key) const;
  void drop_if_unused(Node& node);
  void make_present(Slot& slot);
  void touched(Slot& slot, Wakes& wakes);
  bool advance(Waiter& waiter);  // true: all its keys are there
  void link(Waiter& waiter, Node& node);
  void unlink(Waiter& waiter);
  void finish(Waiter& waiter);
  Waiter& waiter_of(ClientId client);

  Slots slots_;
  std::deque<Waiter> waiters_;  // by ClientId
  std::size_t keys_ = 0;
  std::size_t bytes_ = 0;
  std::size_t waiting_ = 0;
  std::size_t queue_items_ = 0;
};

// Reads a stored number as C++'s stoll does: white space, sign, decimal digits, the rest is ignored.
std::optional<std::int64_t> parse_stored_number(std::string_view text);

}  // namespace ddprun::rendezvous
