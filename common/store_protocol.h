#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The wire protocol of PyTorch's c10d TCPStore (torch 2.15): requests <-> bytes. Pure; used by server, client and
// tests.
//
// All integers little-endian. blob = u64 length + bytes; blobs = u64 count + that many blob. No message has a length or
// a version: a parser must know every opcode, and the only way to say no is to close the connection.
//
//   op  name         client sends after the opcode byte            server answers
//    0  VALIDATE     magic u32 0x3C85F7CE (first message)          nothing
//    1  SET          key blob, value blob                          nothing
//    2  COMPARE_SET  key blob, expected blob, desired blob         value blob
//    3  GET          key blob                                      value blob (empty when missing)
//    4  ADD          key blob, amount i64                          new value i64
//    5  CHECK        keys blobs                                    u8: 0 ready, 1 not ready
//    6  WAIT         keys blobs                                    u8 0, when all are there
//    7  GETNUMKEYS                                                 count i64
//    8  DELETE_KEY   key blob                                      deleted i64 (0 or 1)
//    9  APPEND       key blob, value blob                          nothing
//   10  MULTI_GET    keys blobs                                    a value blob for each, no count
//   11  MULTI_SET    count u64, count x (key blob, value blob)     nothing
//   12  CANCEL_WAIT                                                u8 1, always
//   13  PING         nonce u32                                     the same u32
//   14  QUEUE_PUSH   key blob, value blob                          nothing
//   15  QUEUE_POP    key blob                                      length before the pop i64; if > 0: value blob
//   16  QUEUE_LEN    key blob                                      length i64
//   17  LIST_KEYS                                                  count i64, count x key blob, in no order
//   18  BARRIER      key blob, world size i64                      u8 0, when all have arrived
//
// Bounds (those of torch's libuv server): key 8192 bytes, one value 8 MiB, 131072 keys in one request.
namespace ddprun {

enum class StoreOp : std::uint8_t {
  validate = 0,
  set = 1,
  compare_set = 2,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  num_keys = 7,
  delete_key = 8,
  append = 9,
  multi_get = 10,
  multi_set = 11,
  cancel_wait = 12,
  ping = 13,
  queue_push = 14,
  queue_pop = 15,
  queue_len = 16,
  list_keys = 17,
  barrier = 18,
};
inline constexpr std::size_t kStoreOpCount = 19;
std::string_view to_string(StoreOp op);  // "COMPARE_SET"

inline constexpr std::uint32_t kStoreMagic = 0x3C85F7CE;
inline constexpr std::size_t kStoreMaxKeyBytes = 8192;
inline constexpr std::size_t kStoreMaxValueBytes = std::size_t{8} << 20;
inline constexpr std::size_t kStoreMaxKeys = 131072;
// One byte answers.
inline constexpr char kStoreReady = 0;         // CHECK
inline constexpr char kStoreNotReady = 1;      // CHECK
inline constexpr char kStoreStopWaiting = 0;   // WAIT, BARRIER
inline constexpr char kStoreWaitCanceled = 1;  // CANCEL_WAIT

// Appends a request to `out`, byte for byte as torch's client writes it.
namespace store_wire {
void validate(std::string& out);
void ping(std::string& out, std::uint32_t nonce);
void set(std::string& out, std::string_view key, std::string_view value);
void compare_set(std::string& out, std::string_view key, std::string_view expected, std::string_view desired);
void get(std::string& out, std::string_view key);
void add(std::string& out, std::string_view key, std::int64_t amount);
void keys(std::string& out, StoreOp op, std::span<const std::string> names);  // CHECK, WAIT, MULTI_GET
void num_keys(std::string& out);
void delete_key(std::string& out, std::string_view key);
void append(std::string& out, std::string_view key, std::string_view value);
void multi_set(std::string& out, std::span<const std::pair<std::string, std::string>> pairs);
void cancel_wait(std::string& out);
void queue_push(std::string& out, std::string_view key, std::string_view value);
void queue_pop(std::string& out, std::string_view key);
void queue_len(std::string& out, std::string_view key);
void list_keys(std::string& out);
void barrier(std::string& out, std::string_view key, std::int64_t world_size);
// Little-endian integers and blobs.
void u32(std::string& out, std::uint32_t value);
void u64(std::string& out, std::uint64_t value);
void blob(std::string& out, std::string_view bytes);
}  // namespace store_wire

// One request, or one key (MULTI_GET) or pair (MULTI_SET) of a request that is handled as it comes in.
// The views point into the bytes that were given to StoreDecoder::next() and live until the next call.
struct StoreRequest {
  StoreOp op = StoreOp::ping;
  std::string_view key;                    // also the key of a MULTI_GET or MULTI_SET item
  std::string_view value;                  // SET, APPEND, QUEUE_PUSH, MULTI_SET item; COMPARE_SET: expected
  std::string_view desired;                // COMPARE_SET
  std::int64_t number = 0;                 // ADD amount, BARRIER world size, PING nonce, VALIDATE magic
  std::span<const std::string_view> keys;  // CHECK, WAIT
};

struct StoreDecoderLimits {
  std::size_t max_key_bytes = kStoreMaxKeyBytes;
  std::size_t max_value_bytes = kStoreMaxValueBytes;
  std::size_t max_keys = kStoreMaxKeys;
  std::size_t max_list_bytes = std::size_t{128} << 20;  // one CHECK or WAIT in all
};

// Cuts a byte stream into requests. Linear in the number of bytes whatever the segmentation: it remembers how far an
// incomplete request was looked at. Allocates nothing but the list of a CHECK or WAIT whose bytes are all there.
class StoreDecoder {
 public:
  explicit StoreDecoder(StoreDecoderLimits limits = {}) : limits_(limits) {}

  enum class Step {
    request,    // `request` is filled, `consumed` bytes belong to it
    need_more,  // call again with the same bytes (less `consumed`) and at least one more behind them
    malformed,  // close the connection; why() says the reason
    nothing,    // never returned by next()
  };
  // `bytes`: everything that has come and was not consumed. `consumed` is set for request and need_more.
  Step next(std::string_view bytes, std::size_t& consumed, StoreRequest& request);

  std::string_view why() const { return why_; }
  // Bytes that must be there before next() can say anything else than need_more.
  std::size_t needed() const { return needed_; }

 private:
  Step one(std::string_view bytes, std::size_t& consumed, StoreRequest& request);
  Step fail(std::string_view why);
  Step incomplete(std::size_t needed);
  Step key_list(std::string_view bytes, std::size_t& consumed, StoreRequest& request);
  Step multi_item(std::string_view bytes, std::size_t& consumed, StoreRequest& request);

  StoreDecoderLimits limits_;
  StoreOp multi_op_ = StoreOp::multi_get;
  std::size_t multi_left_ = 0;   // items of the MULTI_GET or MULTI_SET under way
  std::size_t list_left_ = 0;    // keys of the CHECK or WAIT under way that were not looked at yet
  std::size_t list_offset_ = 0;  // how far its bytes were looked at; 0 = none under way
  std::size_t needed_ = 1;
  std::string_view why_;
  std::vector<std::string_view> keys_;
};

}  // namespace ddprun
