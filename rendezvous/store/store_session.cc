#include "rendezvous/store/store_session.h"

#include <algorithm>
#include <cstring>

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view kValidate("\x00\xce\xf7\x85\x3c", 5);
static_assert(kStoreMagic == 0x3C85F7CE);
constexpr std::size_t kKeepPending = 4096;
constexpr std::size_t kLongValue = 16 * 1024;  // from here on a copy costs more than a system call

// torch from before 2023-08: opcodes SET=0 ... WATCH_KEY=7 (later with the magic before each), a key's length behind.
bool looks_too_old(std::string_view bytes) {
  if (bytes.substr(0, 4) == kValidate.substr(1)) return true;
  if (bytes.size() < 9 || static_cast<unsigned char>(bytes[0]) > 12) return false;
  std::uint64_t length;
  std::memcpy(&length, bytes.data() + 1, sizeof length);
  return length > 0 && length <= kStoreMaxKeyBytes;
}

void put_u64(std::string& out, std::uint64_t value) { store_wire::u64(out, value); }

}  // namespace

std::string_view describe_first_bytes(std::string_view bytes) {
  for (const std::string_view verb : {"GET ", "POST", "HEAD", "PUT ", "OPTI", "PRI ", "CONN", "DELE"}) {
    if (bytes.starts_with(verb)) return "an HTTP request";
  }
  if (bytes.starts_with(std::string_view("\x16\x03", 2))) return "a TLS hello";
  if (bytes.starts_with("SSH-")) return "an SSH banner";
  if (bytes.starts_with(std::string_view("\x03\x00\x00", 3))) return "a remote desktop probe";
  const bool text = std::all_of(bytes.begin(), bytes.begin() + std::min<std::ptrdiff_t>(8, std::ssize(bytes)),
                                [](char c) { return (c >= ' ' && c <= '~') || c == '\r' || c == '\n'; });
  return text ? "text" : "bytes that are no VALIDATE";
}

bool StoreSession::has_room(std::size_t bytes) {
  return store_.bytes() + bytes + Store::kKeyOverhead <= limits_.max_store_bytes;
}

StoreSession::Verdict StoreSession::validate(std::string_view& bytes) {
  const std::size_t n = std::min(bytes.size(), kValidate.size());
  if (bytes.substr(0, n) != kValidate.substr(0, n)) {
    if (looks_too_old(bytes)) {
      return refuse(Verdict::too_old,
                    "a PyTorch client from before 2023-08 (no VALIDATE): torch 2.1 or newer is needed");
    }
    return refuse(Verdict::garbage, describe_first_bytes(bytes));
  }
  if (n < kValidate.size()) return Verdict::ok;
  bytes.remove_prefix(n);
  validated_ = true;
  ++counts_[static_cast<std::size_t>(StoreOp::validate)];
  return Verdict::ok;
}

StoreSession::Verdict StoreSession::feed(std::string_view bytes, std::size_t unsent, std::string& out,
                                         Store::Wakes& wakes) {
  const bool from_pending = !pending_.empty();
  if (from_pending) {
    // A request's size is known once its lengths are: room is made as bytes come, not as they are announced.
    pending_.append(bytes);
    bytes = pending_;
  }
  paused_ = false;
  const std::size_t start = out.size();
  if (!validated_) {
    if (const Verdict verdict = validate(bytes); verdict != Verdict::ok) return verdict;
  }
  if (validated_) {
    StoreRequest request;
    for (;;) {
      if (!tail_.empty() || unsent + (out.size() - start) > limits_.max_unread_bytes) {
        paused_ = true;
        break;
      }
      std::size_t consumed = 0;
      const StoreDecoder::Step step = decoder_.next(bytes, consumed, request);
      bytes.remove_prefix(consumed);
      if (step == StoreDecoder::Step::need_more) break;
      if (step == StoreDecoder::Step::malformed) return refuse(Verdict::malformed, decoder_.why());
      if (const Verdict verdict = handle(request, out, wakes); verdict != Verdict::ok) return verdict;
    }
  }
  if (from_pending) {
    pending_.erase(0, pending_.size() - bytes.size());
    if (pending_.empty() && pending_.capacity() > kKeepPending) std::string().swap(pending_);
  } else if (!bytes.empty()) {
    pending_.assign(bytes);
  }
  return Verdict::ok;
}

void StoreSession::put_value(std::string_view value, std::string& out) {
  if (value.size() < kLongValue) {
    store_wire::blob(out, value);
    return;
  }
  put_u64(out, value.size());
  tail_ = value;
}

StoreSession::Verdict StoreSession::handle(const StoreRequest& request, std::string& out, Store::Wakes& wakes) {
  ++counts_[static_cast<std::size_t>(request.op)];
  const std::size_t woken = wakes.size();
  switch (request.op) {
    case StoreOp::validate:
      return refuse(Verdict::malformed, "a second VALIDATE");
    case StoreOp::set:
    case StoreOp::multi_set:
      if (!has_room(request.key.size() + request.value.size())) return refuse(Verdict::memory, "the store is full");
      store_.set(request.key, request.value, wakes);
      break;
    case StoreOp::append:
      if (!has_room(request.key.size() + request.value.size())) return refuse(Verdict::memory, "the store is full");
      store_.append(request.key, request.value, wakes);
      break;
    case StoreOp::compare_set:
      if (!has_room(request.key.size() + request.desired.size())) return refuse(Verdict::memory, "the store is full");
      store_wire::blob(out, store_.compare_set(request.key, request.value, request.desired, wakes));
      break;
    case StoreOp::get:
    case StoreOp::multi_get:
      put_value(store_.get(request.key), out);
      break;
    case StoreOp::add: {
      if (!has_room(request.key.size() + 20)) return refuse(Verdict::memory, "the store is full");
      const auto sum = store_.add(request.key, request.number, wakes);
      if (!sum) return refuse(Verdict::malformed, "ADD to a value that is no number");
      put_u64(out, static_cast<std::uint64_t>(*sum));
      break;
    }
    case StoreOp::check:
      out.push_back(store_.check(request.keys) ? kStoreReady : kStoreNotReady);
      break;
    case StoreOp::wait: {
      std::size_t bytes = 0;
      for (const std::string_view key : request.keys) bytes += key.size() + Store::kKeyOverhead;
      if (!has_room(bytes)) return refuse(Verdict::memory, "the store is full");
      if (store_.wait(client_, request.keys)) out.push_back(kStoreStopWaiting);
      break;
    }
    case StoreOp::num_keys:
      put_u64(out, store_.num_keys());
      break;
    case StoreOp::delete_key:
      put_u64(out, store_.delete_key(request.key) ? 1 : 0);
      break;
    case StoreOp::cancel_wait:
      store_.forget(client_);
      out.push_back(kStoreWaitCanceled);
      break;
    case StoreOp::ping:
      store_wire::u32(out, static_cast<std::uint32_t>(request.number));
      break;
    case StoreOp::queue_push:
      if (!has_room(request.key.size() + request.value.size())) return refuse(Verdict::memory, "the store is full");
      store_.queue_push(request.key, request.value, wakes);
      break;
    case StoreOp::queue_pop: {
      std::string item;
      const std::size_t length = store_.queue_pop(request.key, item);
      put_u64(out, length);
      if (length > 0) store_wire::blob(out, item);
      break;
    }
    case StoreOp::queue_len:
      put_u64(out, store_.queue_len(request.key));
      break;
    case StoreOp::list_keys:
      put_u64(out, store_.num_keys());
      store_.list_keys([&out](std::string_view key) { store_wire::blob(out, key); });
      break;
    case StoreOp::barrier:
      if (!has_room(request.key.size() + 20)) return refuse(Verdict::memory, "the store is full");
      switch (store_.barrier(client_, request.key, request.number, wakes)) {
        case Store::Arrival::released:
          out.push_back(kStoreStopWaiting);
          break;
        case Store::Arrival::waiting:
          break;
        case Store::Arrival::not_a_number:
          return refuse(Verdict::malformed, "BARRIER on a value that is no number");
      }
      break;
  }
  // Our own wait that our own request ended: its byte stands here in the order of the answers.
  if (wakes.size() > woken) {
    const auto own = std::find(wakes.begin() + static_cast<std::ptrdiff_t>(woken), wakes.end(), client_);
    if (own != wakes.end()) {
      out.push_back(kStoreStopWaiting);
      wakes.erase(own);
    }
  }
  return Verdict::ok;
}

}  // namespace ddprun::rendezvous
