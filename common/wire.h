#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun {

// Appends little-endian integers and length-prefixed blobs to a byte string.
class WireWriter {
 public:
  void u8(std::uint8_t v) { bytes_.push_back(static_cast<char>(v)); }
  void u16(std::uint16_t v) { fixed(v); }
  void u32(std::uint32_t v) { fixed(v); }
  void u64(std::uint64_t v) { fixed(v); }
  void i64(std::int64_t v) { fixed(static_cast<std::uint64_t>(v)); }
  void raw(std::string_view v) { bytes_.append(v); }
  void blob(std::string_view v) {  // u64 length + bytes, as c10d writes it
    u64(v.size());
    raw(v);
  }
  void text(std::string_view v) {  // u32 length + bytes, as our own protocols write it
    u32(static_cast<std::uint32_t>(v.size()));
    raw(v);
  }

  const std::string& bytes() const { return bytes_; }
  std::string take() && { return std::move(bytes_); }
  // Overwrites four bytes at `offset`: for a length that is known only at the end.
  void patch_u32(std::size_t offset, std::uint32_t v);

 private:
  template <typename T>
  void fixed(T v) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<char>((v >> (8 * i)) & 0xff));
  }

  std::string bytes_;
};

// Reads what WireWriter wrote. Never reads past the end: the first read that does not fit makes failed() true for good,
// and every later read gives zero or empty. Every length is checked against `max` and against what is there before
// anything is allocated.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(fixed(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(fixed(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(fixed(4)); }
  std::uint64_t u64() { return fixed(8); }
  std::int64_t i64() { return static_cast<std::int64_t>(fixed(8)); }
  std::string_view raw(std::uint64_t size);
  std::string_view blob(std::uint64_t max);  // u64 length + bytes
  std::string_view text(std::uint32_t max);  // u32 length + bytes

  bool failed() const { return failed_; }
  void fail() { failed_ = true; }
  std::size_t remaining() const { return bytes_.size() - offset_; }
  std::size_t offset() const { return offset_; }
  // True if everything was read and nothing went wrong.
  bool finished() const { return !failed_ && remaining() == 0; }

 private:
  std::uint64_t fixed(std::size_t size);

  std::string_view bytes_;
  std::size_t offset_ = 0;
  bool failed_ = false;
};

}  // namespace ddprun
