#include "launcher/hosts/frames.h"

#include <fmt/format.h>

#include <utility>

#include "common/wire.h"

namespace ddprun::launcher::hosts {
namespace {

enum Kind : std::uint8_t { kHello = 1, kStart, kSignal, kAlive, kInput, kOutput, kEnd };
constexpr std::size_t kHeader = 5;

void texts(WireWriter& out, const std::vector<std::string>& list) {
  out.u32(static_cast<std::uint32_t>(list.size()));
  for (const auto& item : list) out.text(item);
}

std::vector<std::string> texts(WireReader& in) {
  std::vector<std::string> out;
  const std::uint32_t count = in.u32();
  if (count > in.remaining() / 4) in.fail();
  for (std::uint32_t i = 0; i < count && !in.failed(); ++i) out.emplace_back(in.text(kMaxFrame));
  return out;
}

std::uint32_t ms(std::chrono::milliseconds time) { return static_cast<std::uint32_t>(time.count()); }

struct Writer {
  WireWriter& out;
  Kind operator()(const Hello& m) const {
    out.u16(m.version);
    out.text(m.program_version);
    out.text(m.host);
    out.text(m.identity);
    out.text(m.address);
    out.u16(m.port);
    return kHello;
  }
  Kind operator()(const Start& m) const {
    texts(out, m.arguments);
    texts(out, m.environment);
    out.text(m.folder);
    out.u8(m.input ? 1 : 0);
    out.u32(ms(m.silence));
    out.u32(ms(m.patience));
    return kStart;
  }
  Kind operator()(const Signal& m) const {
    out.u8(static_cast<std::uint8_t>(m.number));
    return kSignal;
  }
  Kind operator()(const Alive&) const { return kAlive; }
  Kind operator()(const Input& m) const {
    out.raw(m.bytes);
    return kInput;
  }
  Kind operator()(const Output& m) const {
    out.u8(static_cast<std::uint8_t>(m.stream));
    out.raw(m.bytes);
    return kOutput;
  }
  Kind operator()(const End& m) const {
    out.u8(static_cast<std::uint8_t>(m.code));
    out.text(m.sentence);
    out.text(m.report);
    return kEnd;
  }
};

std::optional<Message> decode(std::uint8_t kind, WireReader& in) {
  const auto text = [&in] { return std::string(in.text(kMaxFrame)); };
  switch (kind) {
    case kHello: {
      Hello m;
      m.version = in.u16();
      m.program_version = text();
      m.host = text();
      m.identity = text();
      m.address = text();
      m.port = in.u16();
      return m;
    }
    case kStart: {
      Start m;
      m.arguments = texts(in);
      m.environment = texts(in);
      m.folder = text();
      m.input = in.u8() != 0;
      m.silence = std::chrono::milliseconds(in.u32());
      m.patience = std::chrono::milliseconds(in.u32());
      if (m.arguments.empty()) in.fail();
      return m;
    }
    case kSignal:
      return Signal{in.u8()};
    case kAlive:
      return Alive{};
    case kInput:
      return Input{std::string(in.raw(in.remaining()))};
    case kOutput: {
      Output m;
      m.stream = in.u8();
      if (m.stream != 1 && m.stream != 2) in.fail();
      m.bytes = in.raw(in.remaining());
      return m;
    }
    case kEnd: {
      End m;
      m.code = in.u8();
      m.sentence = text();
      m.report = text();
      return m;
    }
    default:
      in.fail();
      return std::nullopt;
  }
}

}  // namespace

std::string encode(const Message& message) {
  WireWriter out;
  out.u8(0);
  out.u32(0);
  const Kind kind = std::visit(Writer{out}, message);
  out.patch_u32(1, static_cast<std::uint32_t>(out.bytes().size() - kHeader));
  std::string bytes = std::move(out).take();
  bytes[0] = static_cast<char>(kind);
  return bytes;
}

Result<std::optional<Message>> FrameReader::next() {
  if (!found_magic_) {
    const auto at = held_.find(kMagic);
    if (at == std::string::npos) {
      if (held_.size() > kMaxNoise) {
        return Error(Errc::malformed, "the remote shell writes a lot, but no ddprun answers there");
      }
      return std::optional<Message>();
    }
    noise_ = held_.substr(0, at);
    held_.erase(0, at + kMagic.size());
    found_magic_ = true;
  }
  const std::string_view rest = std::string_view(held_).substr(read_);
  WireReader head(rest);
  const std::uint8_t kind = head.u8();
  const std::uint32_t size = head.u32();
  if (!head.failed() && size > kMaxFrame) {
    return Error(Errc::malformed, fmt::format("a message of {} bytes, more than any has", size));
  }
  if (head.failed() || rest.size() - kHeader < size) {
    held_.erase(0, std::exchange(read_, 0));
    return std::optional<Message>();
  }
  WireReader body(rest.substr(kHeader, size));
  auto message = decode(kind, body);
  if (!body.finished()) {
    return Error(Errc::malformed, fmt::format("a message of kind {} and {} bytes that cannot be read", kind, size));
  }
  read_ += kHeader + size;
  return message;
}

}  // namespace ddprun::launcher::hosts
