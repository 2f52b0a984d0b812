#include "common/store_protocol.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace ddprun {
namespace {

static_assert(std::endian::native == std::endian::little, "the c10d wire is little-endian and copied as it is");

constexpr std::array<std::string_view, kStoreOpCount> kNames{
    "VALIDATE",   "SET",        "COMPARE_SET", "GET",       "ADD",       "CHECK",       "WAIT",
    "GETNUMKEYS", "DELETE_KEY", "APPEND",      "MULTI_GET", "MULTI_SET", "CANCEL_WAIT", "PING",
    "QUEUE_PUSH", "QUEUE_POP",  "QUEUE_LEN",   "LIST_KEYS", "BARRIER"};

void op(std::string& out, StoreOp code) { out.push_back(static_cast<char>(code)); }

std::uint64_t load_u64(const char* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::uint32_t load_u32(const char* at) {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Reads fields of a request that may not be there in full. After a field that did not fit, needed() says how many
// bytes (from the start) are known to be necessary; after one over its bound, why() is not empty.
class Fields {
 public:
  Fields(std::string_view bytes, std::size_t offset) : bytes_(bytes), offset_(offset) {}

  bool blob(std::string_view& out, std::size_t max, std::string_view too_long) {
    if (!has(8)) return false;
    const std::uint64_t size = load_u64(bytes_.data() + offset_);
    if (size > max) {
      why_ = too_long;
      return false;
    }
    offset_ += 8;
    if (!has(size)) return false;
    out = bytes_.substr(offset_, size);
    offset_ += size;
    return true;
  }
  bool i64(std::int64_t& out) {
    if (!has(8)) return false;
    out = static_cast<std::int64_t>(load_u64(bytes_.data() + offset_));
    offset_ += 8;
    return true;
  }
  bool u32(std::int64_t& out) {
    if (!has(4)) return false;
    out = load_u32(bytes_.data() + offset_);
    offset_ += 4;
    return true;
  }

  std::size_t offset() const { return offset_; }
  std::size_t needed() const { return needed_; }
  std::string_view why() const { return why_; }

 private:
  bool has(std::size_t size) {
    if (bytes_.size() - offset_ >= size) return true;
    needed_ = offset_ + size;
    return false;
  }

  std::string_view bytes_;
  std::size_t offset_;
  std::size_t needed_ = 0;
  std::string_view why_;
};

constexpr std::string_view kLongKey = "key too long";
constexpr std::string_view kLongValue = "value too long";
constexpr std::string_view kManyKeys = "too many keys in one request";

}  // namespace

std::string_view to_string(StoreOp code) {
  const auto index = static_cast<std::size_t>(code);
  return index < kNames.size() ? kNames[index] : "unknown opcode";
}

namespace store_wire {

void u32(std::string& out, std::uint32_t value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void u64(std::string& out, std::uint64_t value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void blob(std::string& out, std::string_view bytes) {
  u64(out, bytes.size());
  out.append(bytes);
}

void validate(std::string& out) {
  op(out, StoreOp::validate);
  u32(out, kStoreMagic);
}

void ping(std::string& out, std::uint32_t nonce) {
  op(out, StoreOp::ping);
  u32(out, nonce);
}

void set(std::string& out, std::string_view key, std::string_view value) {
  op(out, StoreOp::set);
  blob(out, key);
  blob(out, value);
}

void compare_set(std::string& out, std::string_view key, std::string_view expected, std::string_view desired) {
  op(out, StoreOp::compare_set);
  blob(out, key);
  blob(out, expected);
  blob(out, desired);
}

void get(std::string& out, std::string_view key) {
  op(out, StoreOp::get);
  blob(out, key);
}

void add(std::string& out, std::string_view key, std::int64_t amount) {
  op(out, StoreOp::add);
  blob(out, key);
  u64(out, static_cast<std::uint64_t>(amount));
}

void keys(std::string& out, StoreOp code, std::span<const std::string> names) {
  op(out, code);
  u64(out, names.size());
  for (const std::string& name : names) blob(out, name);
}

void num_keys(std::string& out) { op(out, StoreOp::num_keys); }

void delete_key(std::string& out, std::string_view key) {
  op(out, StoreOp::delete_key);
  blob(out, key);
}

void append(std::string& out, std::string_view key, std::string_view value) {
  op(out, StoreOp::append);
  blob(out, key);
  blob(out, value);
}

void multi_set(std::string& out, std::span<const std::pair<std::string, std::string>> pairs) {
  op(out, StoreOp::multi_set);
  u64(out, pairs.size());
  for (const auto& [key, value] : pairs) {
    blob(out, key);
    blob(out, value);
  }
}

void cancel_wait(std::string& out) { op(out, StoreOp::cancel_wait); }

void queue_push(std::string& out, std::string_view key, std::string_view value) {
  op(out, StoreOp::queue_push);
  blob(out, key);
  blob(out, value);
}

void queue_pop(std::string& out, std::string_view key) {
  op(out, StoreOp::queue_pop);
  blob(out, key);
}

void queue_len(std::string& out, std::string_view key) {
  op(out, StoreOp::queue_len);
  blob(out, key);
}

void list_keys(std::string& out) { op(out, StoreOp::list_keys); }

void barrier(std::string& out, std::string_view key, std::int64_t world_size) {
  op(out, StoreOp::barrier);
  blob(out, key);
  u64(out, static_cast<std::uint64_t>(world_size));
}

}  // namespace store_wire

StoreDecoder::Step StoreDecoder::fail(std::string_view why) {
  why_ = why;
  return Step::malformed;
}

StoreDecoder::Step StoreDecoder::incomplete(std::size_t needed) {
  needed_ = needed;
  return Step::need_more;
}

StoreDecoder::Step StoreDecoder::next(std::string_view bytes, std::size_t& consumed, StoreRequest& request) {
  consumed = 0;
  if (bytes.size() < needed_) return Step::need_more;
  needed_ = 1;
  // A big list's memory is not kept by a connection that then falls silent.
  if (keys_.capacity() > 1024) std::vector<std::string_view>().swap(keys_);
  for (;;) {
    std::size_t used = 0;
    const Step step = one(bytes, used, request);
    consumed += used;
    if (step != Step::nothing) return step;
    bytes.remove_prefix(used);
  }
}

StoreDecoder::Step StoreDecoder::one(std::string_view bytes, std::size_t& consumed, StoreRequest& request) {
  if (bytes.empty()) return incomplete(1);
  if (multi_left_ > 0) return multi_item(bytes, consumed, request);
  if (list_offset_ > 0) return key_list(bytes, consumed, request);

  const auto code = static_cast<unsigned char>(bytes[0]);
  if (code >= kStoreOpCount) return fail("unknown opcode");
  request.op = static_cast<StoreOp>(code);
  Fields fields(bytes, 1);
  bool whole = false;
  switch (request.op) {
    case StoreOp::validate:
    case StoreOp::ping:
      whole = fields.u32(request.number);
      break;
    case StoreOp::set:
    case StoreOp::append:
    case StoreOp::queue_push:
      whole = fields.blob(request.key, limits_.max_key_bytes, kLongKey) &&
              fields.blob(request.value, limits_.max_value_bytes, kLongValue);
      break;
    case StoreOp::compare_set:
      whole = fields.blob(request.key, limits_.max_key_bytes, kLongKey) &&
              fields.blob(request.value, limits_.max_value_bytes, kLongValue) &&
              fields.blob(request.desired, limits_.max_value_bytes, kLongValue);
      break;
    case StoreOp::get:
    case StoreOp::delete_key:
    case StoreOp::queue_pop:
    case StoreOp::queue_len:
      whole = fields.blob(request.key, limits_.max_key_bytes, kLongKey);
      break;
    case StoreOp::add:
    case StoreOp::barrier:
      whole = fields.blob(request.key, limits_.max_key_bytes, kLongKey) && fields.i64(request.number);
      break;
    case StoreOp::num_keys:
    case StoreOp::cancel_wait:
    case StoreOp::list_keys:
      whole = true;
      break;
    case StoreOp::check:
    case StoreOp::wait:
    case StoreOp::multi_get:
    case StoreOp::multi_set: {
      std::int64_t count = 0;
      if (!fields.i64(count)) break;
      if (static_cast<std::uint64_t>(count) > limits_.max_keys) return fail(kManyKeys);
      if (request.op == StoreOp::check || request.op == StoreOp::wait) {
        list_left_ = static_cast<std::size_t>(count);
        list_offset_ = fields.offset();
        return key_list(bytes, consumed, request);
      }
      multi_op_ = request.op;
      multi_left_ = static_cast<std::size_t>(count);
      consumed = fields.offset();
      return Step::nothing;
    }
  }
  if (whole) {
    consumed = fields.offset();
    return Step::request;
  }
  return fields.why().empty() ? incomplete(fields.needed()) : fail(fields.why());
}

// CHECK and WAIT are handled whole. list_offset_ says how far the lengths were followed, so that a list of 131072 keys
// that comes in small pieces is walked once, plus once more when all of it is there.
StoreDecoder::Step StoreDecoder::key_list(std::string_view bytes, std::size_t& consumed, StoreRequest& request) {
  while (list_left_ > 0) {
    Fields fields(bytes, list_offset_);
    std::string_view key;
    if (!fields.blob(key, limits_.max_key_bytes, kLongKey)) {
      if (!fields.why().empty()) return fail(fields.why());
      if (fields.needed() > limits_.max_list_bytes) return fail("request too long");
      return incomplete(fields.needed());
    }
    list_offset_ = fields.offset();
    if (list_offset_ > limits_.max_list_bytes) return fail("request too long");
    --list_left_;
  }
  request.op = static_cast<StoreOp>(bytes[0]);
  const std::uint64_t count = load_u64(bytes.data() + 1);
  keys_.resize(count);
  Fields fields(bytes, 9);
  for (std::string_view& key : keys_) fields.blob(key, limits_.max_key_bytes, kLongKey);
  request.keys = keys_;
  consumed = list_offset_;
  list_offset_ = 0;
  return Step::request;
}

StoreDecoder::Step StoreDecoder::multi_item(std::string_view bytes, std::size_t& consumed, StoreRequest& request) {
  request.op = multi_op_;
  Fields fields(bytes, 0);
  const bool whole =
      fields.blob(request.key, limits_.max_key_bytes, kLongKey) &&
      (multi_op_ == StoreOp::multi_get || fields.blob(request.value, limits_.max_value_bytes, kLongValue));
  if (!whole) return fields.why().empty() ? incomplete(fields.needed()) : fail(fields.why());
  consumed = fields.offset();
  --multi_left_;
  return Step::request;
}

}  // namespace ddprun
