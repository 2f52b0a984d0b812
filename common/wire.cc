#include "common/wire.h"

#include "common/check.h"

namespace ddprun {

void WireWriter::patch_u32(std::size_t offset, std::uint32_t v) {
  CHECK(offset + 4 <= bytes_.size(), "patch outside of what was written");
  for (std::size_t i = 0; i < 4; ++i) bytes_[offset + i] = static_cast<char>((v >> (8 * i)) & 0xff);
}

std::uint64_t WireReader::fixed(std::size_t size) {
  const std::string_view piece = raw(size);
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(piece[i])) << (8 * i);
  }
  return value;
}

std::string_view WireReader::raw(std::uint64_t size) {
  if (failed_ || size > remaining()) {
    failed_ = true;
    return {};
  }
  const std::string_view piece = bytes_.substr(offset_, static_cast<std::size_t>(size));
  offset_ += static_cast<std::size_t>(size);
  return piece;
}

std::string_view WireReader::blob(std::uint64_t max) {
  const std::uint64_t size = u64();
  if (size > max) failed_ = true;
  return raw(size);
}

std::string_view WireReader::text(std::uint32_t max) {
  const std::uint32_t size = u32();
  if (size > max) failed_ = true;
  return raw(size);
}

}  // namespace ddprun
