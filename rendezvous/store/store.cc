#include "rendezvous/store/store.h"

#include <charconv>
#include <cstring>
#include <random>
#include <utility>

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kQueueItemOverhead = 40;
constexpr std::size_t kSmallTable = 4096;
constexpr std::size_t kKeepNodes = 64;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) ^ device();
}

void store_number(std::string& value, std::int64_t number) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  value.assign(text, static_cast<std::size_t>(end - text));
}

}  // namespace

std::optional<std::int64_t> parse_stored_number(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size() && (text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r'))) ++i;
  bool plus = false;
  if (i < text.size() && text[i] == '+') {
    plus = true;
    ++i;
  }
  if (plus && i < text.size() && text[i] == '-') return std::nullopt;
  std::int64_t number = 0;
  const auto parsed = std::from_chars(text.data() + i, text.data() + text.size(), number);
  if (parsed.ec != std::errc()) return std::nullopt;
  return number;
}

// Eight bytes a step, folded through a 128-bit product; the last step takes what is left and the length.
std::size_t Store::Hash::operator()(std::string_view text) const noexcept {
  constexpr std::uint64_t kOdd1 = 0x9e3779b97f4a7c15u;
  constexpr std::uint64_t kOdd2 = 0xd6e8feb86659fd93u;
  std::uint64_t h = seed;
  const char* at = text.data();
  std::size_t left = text.size();
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    h = mix(h ^ word, kOdd1 ^ seed);
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, at, left);
  return mix(h ^ tail, kOdd2 ^ text.size());
}

Store::Store() : slots_(0, Hash{random_seed()}) {}
Store::~Store() = default;

Store::Node& Store::slot(std::string_view key) {
  if (Node* there = find(key)) return *there;
  bytes_ += key.size() + kKeyOverhead;
  return *slots_.try_emplace(std::string(key)).first;
}

Store::Node* Store::find(std::string_view key) {
  const auto it = slots_.find(key);
  return it == slots_.end() ? nullptr : &*it;
}

const Store::Slot* Store::find(std::string_view key) const {
  const auto it = slots_.find(key);
  return it == slots_.end() ? nullptr : &it->second;
}

void Store::drop_if_unused(Node& node) {
  Slot& slot = node.second;
  if (slot.present || slot.named > 0 || (slot.queue && !slot.queue->empty())) return;
  bytes_ -= node.first.size() + kKeyOverhead;
  slots_.erase(slots_.find(node.first));
  // The table shrinks with its content, so that a burst of keys leaves no memory behind.
  if (slots_.bucket_count() > kSmallTable && slots_.size() < slots_.bucket_count() / 8)
    slots_.rehash(slots_.size() * 2);
}

void Store::make_present(Slot& slot) {
  if (slot.present) return;
  slot.present = true;
  ++keys_;
}

Store::Waiter& Store::waiter_of(ClientId client) {
  while (waiters_.size() <= client) {
    waiters_.emplace_back();
    waiters_.back().client = static_cast<ClientId>(waiters_.size() - 1);
  }
  return waiters_[client];
}

void Store::link(Waiter& waiter, Node& node) {
  Slot& slot = node.second;
  waiter.at = &node;
  waiter.previous = slot.last;
  waiter.next = nullptr;
  (slot.last ? slot.last->next : slot.first) = &waiter;
  slot.last = &waiter;
}

void Store::unlink(Waiter& waiter) {
  Slot& slot = waiter.at->second;
  (waiter.previous ? waiter.previous->next : slot.first) = waiter.next;
  (waiter.next ? waiter.next->previous : slot.last) = waiter.previous;
  waiter.at = nullptr;
}

void Store::finish(Waiter& waiter) {
  unlink(waiter);
  --waiting_;
  bytes_ -= waiter.nodes.size() * sizeof(Node*);
  for (Node* node : waiter.nodes) {
    --node->second.named;
    // A key named twice is dropped once, after its last mention.
    if (node->second.named == 0) drop_if_unused(*node);
  }
  waiter.nodes.clear();
  if (waiter.nodes.capacity() > kKeepNodes) std::vector<Node*>().swap(waiter.nodes);
}

// Looks at the keys behind the one it is registered at, round and round: it stays registered at the first that is
// missing. Nothing can change meanwhile, so a full round without a missing key means that all are there now.
bool Store::advance(Waiter& waiter) {
  const auto count = static_cast<std::uint32_t>(waiter.nodes.size());
  std::uint32_t index = waiter.index;
  for (std::uint32_t looked = 0; looked < count; ++looked) {
    index = index + 1 == count ? 0 : index + 1;
    Node& node = *waiter.nodes[index];
    if (node.second.ready()) continue;
    unlink(waiter);
    waiter.index = index;
    link(waiter, node);
    return false;
  }
  return true;
}

void Store::touched(Slot& slot, Wakes& wakes) {
  for (Waiter* waiter = slot.first; waiter != nullptr;) {
    Waiter* next = waiter->next;
    if (waiter->barrier || advance(*waiter)) {
      wakes.push_back(waiter->client);
      finish(*waiter);
    }
    waiter = next;
  }
}

void Store::set(std::string_view key, std::string_view value, Wakes& wakes) {
  Slot& slot = this->slot(key).second;
  bytes_ += value.size() - slot.value.size();
  // assign() keeps a big buffer for a small value: what the count says would not be what is used.
  if (slot.value.capacity() > 1024 && value.size() < slot.value.capacity() / 4) std::string().swap(slot.value);
  slot.value.assign(value);
  make_present(slot);
  if (slot.first) touched(slot, wakes);
}

void Store::append(std::string_view key, std::string_view value, Wakes& wakes) {
  Slot& slot = this->slot(key).second;
  bytes_ += value.size();
  slot.value.append(value);
  make_present(slot);
  if (slot.first) touched(slot, wakes);
}

std::optional<std::int64_t> Store::add(std::string_view key, std::int64_t amount, Wakes& wakes) {
  Slot& slot = this->slot(key).second;
  std::int64_t number = 0;
  if (slot.present) {
    const auto stored = parse_stored_number(slot.value);
    if (!stored) return std::nullopt;
    number = *stored;
  }
  number = static_cast<std::int64_t>(static_cast<std::uint64_t>(number) + static_cast<std::uint64_t>(amount));
  bytes_ -= slot.value.size();
  store_number(slot.value, number);
  bytes_ += slot.value.size();
  make_present(slot);
  if (slot.first) touched(slot, wakes);
  return number;
}

std::string_view Store::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                    Wakes& wakes) {
  Node* node = find(key);
  const bool present = node != nullptr && node->second.present;
  if (!present && !expected.empty()) return expected;
  if (present && node->second.value != expected) return node->second.value;
  set(key, desired, wakes);
  return desired;
}

std::string_view Store::get(std::string_view key) const {
  const Slot* slot = find(key);
  return slot != nullptr && slot->present ? std::string_view(slot->value) : std::string_view();
}

bool Store::check(std::span<const std::string_view> keys) const {
  for (const std::string_view key : keys) {
    const Slot* slot = find(key);
    if (slot == nullptr || !slot->ready()) return false;
  }
  return true;
}

bool Store::delete_key(std::string_view key) {
  Node* node = find(key);
  if (node == nullptr || !node->second.present) return false;
  Slot& slot = node->second;
  bytes_ -= slot.value.size();
  std::string().swap(slot.value);
  slot.present = false;
  --keys_;
  drop_if_unused(*node);
  return true;
}

void Store::queue_push(std::string_view key, std::string_view value, Wakes& wakes) {
  Slot& slot = this->slot(key).second;
  if (!slot.queue) slot.queue = std::make_unique<std::deque<std::string>>();
  slot.queue->emplace_back(value);
  ++queue_items_;
  bytes_ += value.size() + kQueueItemOverhead;
  for (Waiter* waiter = slot.first; waiter != nullptr;) {
    Waiter* next = waiter->next;
    if (!waiter->barrier && advance(*waiter)) {
      wakes.push_back(waiter->client);
      finish(*waiter);
      return;
    }
    waiter = next;
  }
}

std::size_t Store::queue_pop(std::string_view key, std::string& item) {
  Node* node = find(key);
  if (node == nullptr || !node->second.queue || node->second.queue->empty()) return 0;
  Slot& slot = node->second;
  const std::size_t length = slot.queue->size();
  item = std::move(slot.queue->front());
  slot.queue->pop_front();
  --queue_items_;
  bytes_ -= item.size() + kQueueItemOverhead;
  if (length == 1) {
    slot.queue.reset();
    drop_if_unused(*node);
  }
  return length;
}

std::size_t Store::queue_len(std::string_view key) const {
  const Slot* slot = find(key);
  return slot != nullptr && slot->queue ? slot->queue->size() : 0;
}

bool Store::wait(ClientId client, std::span<const std::string_view> keys) {
  forget(client);
  std::size_t missing = 0;
  while (missing < keys.size() && check(keys.subspan(missing, 1))) ++missing;
  if (missing == keys.size()) return true;
  Waiter& waiter = waiter_of(client);
  waiter.nodes.reserve(keys.size());
  for (const std::string_view key : keys) {
    Node& node = slot(key);
    ++node.second.named;
    waiter.nodes.push_back(&node);
  }
  bytes_ += waiter.nodes.size() * sizeof(Node*);
  waiter.barrier = false;
  waiter.index = static_cast<std::uint32_t>(missing);
  link(waiter, *waiter.nodes[missing]);
  ++waiting_;
  return false;
}

Store::Arrival Store::barrier(ClientId client, std::string_view key, std::int64_t world_size, Wakes& wakes) {
  forget(client);
  Node& node = slot(key);
  Slot& slot = node.second;
  std::int64_t arrived = 0;
  if (slot.present) {
    const auto stored = parse_stored_number(slot.value);
    if (!stored) return Arrival::not_a_number;
    arrived = *stored;
  }
  arrived = static_cast<std::int64_t>(static_cast<std::uint64_t>(arrived) + 1);
  bytes_ -= slot.value.size();
  store_number(slot.value, arrived);
  bytes_ += slot.value.size();
  make_present(slot);
  if (arrived >= world_size) {
    touched(slot, wakes);
    return Arrival::released;
  }
  Waiter& waiter = waiter_of(client);
  ++slot.named;
  waiter.nodes.push_back(&node);
  bytes_ += sizeof(Node*);
  waiter.barrier = true;
  waiter.index = 0;
  link(waiter, node);
  ++waiting_;
  return Arrival::waiting;
}

void Store::forget(ClientId client) {
  if (client >= waiters_.size()) return;
  Waiter& waiter = waiters_[client];
  if (waiter.at != nullptr) finish(waiter);
}

void Store::clear() {
  std::deque<Waiter>().swap(waiters_);
  slots_.clear();
  slots_.rehash(0);
  keys_ = bytes_ = waiting_ = queue_items_ = 0;
}

}  // namespace ddprun::rendezvous
