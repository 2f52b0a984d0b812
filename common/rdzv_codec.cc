// Messages <-> bytes, both ways from the lists in rdzv_fields.h. What is longer than its bound is cut by the writer and
// refused by the reader, which names the first thing that is out of its bounds.
#include <algorithm>
#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "common/rdzv_fields.h"
#include "common/rdzv_protocol.h"
#include "common/wire.h"

namespace ddprun::rdzv {
namespace {

template <typename T>
inline constexpr bool kIsList = false;
template <typename T>
inline constexpr bool kIsList<std::vector<T>> = true;
template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <typename T>
concept IsWrapped = requires(T value) {
  value.value;
};  // Rank, Round, RunId ...
template <typename T>
concept IsDuration = std::same_as<T, std::chrono::milliseconds>;
template <typename T>
concept IsByte = std::is_enum_v<T> || std::same_as<T, bool>;

template <typename T>
constexpr std::int64_t last_of() {
  if constexpr (std::is_enum_v<T>) {
    static_assert(static_cast<std::size_t>(words(T()).back().value) + 1 == kEnumSize<T>, "numbered from 0 on");
    return static_cast<std::int64_t>(kEnumSize<T>) - 1;
  } else {
    return 1;
  }
}

// --- writing ------------------------------------------------------------------------------------------------------

// Of a list that is too long: lines lose their beginning, since the very last say most; all else its end.
template <typename T>
std::size_t first_kept(const std::vector<T>& list, std::size_t max) {
  return std::same_as<T, std::string> && list.size() > max ? list.size() - max : 0;
}

template <typename T>
void put(WireWriter& w, const T& value, Bounds bounds) {
  if constexpr (std::same_as<T, std::string>) {
    w.text(std::string_view(value).substr(0, static_cast<std::size_t>(bounds.max)));
  } else if constexpr (kIsList<T>) {
    const auto max = static_cast<std::size_t>(bounds.max);
    const std::size_t first = first_kept(value, max), count = std::min(value.size(), max);
    w.u32(static_cast<std::uint32_t>(count));
    for (std::size_t i = first; i < first + count; ++i) put(w, value[i], Bounds{0, bounds.text_bytes});
  } else if constexpr (kIsOptional<T>) {
    w.u8(value ? 1 : 0);
    if (value) put(w, *value, bounds);
  } else if constexpr (IsWrapped<T>) {
    put(w, value.value, bounds);
  } else if constexpr (IsDuration<T>) {
    w.i64(value.count());
  } else if constexpr (IsByte<T>) {
    w.u8(static_cast<std::uint8_t>(value));
  } else if constexpr (std::same_as<T, std::uint16_t>) {
    w.u16(value);
  } else if constexpr (std::same_as<T, std::uint32_t>) {
    w.u32(value);
  } else if constexpr (std::same_as<T, std::uint64_t>) {
    w.u64(value);
  } else if constexpr (std::integral<T>) {
    w.i64(value);
  } else {
    for_each_field(value, [&w](const auto& field, const auto& member) { put(w, member, field.bounds); });
  }
}

// What must not be lost when a list is cut.
template <typename T>
const T& prepared(const T& message, T&) {
  return message;
}
// The root cause always travels: it stands first by time, and the list is cut at its end.
const Shutdown& prepared(const Shutdown& message, Shutdown& copy) {
  if (!message.root || *message.root < kMaxFailures) return message;
  copy = message;
  copy.failures[kMaxFailures - 1] = message.failures.at(*message.root);
  copy.root = kMaxFailures - 1;
  return copy;
}

template <typename Message>
std::string encode_frame(const Message& message) {
  WireWriter w;
  w.u32(0);
  std::visit(
      [&w]<typename T>(const T& m) {
        w.u8(Described<T>::frame.type);
        T copy;
        put(w, prepared(m, copy), Bounds());
      },
      message);
  w.patch_u32(0, static_cast<std::uint32_t>(w.bytes().size() - 4));
  return std::move(w).take();
}

// --- reading ------------------------------------------------------------------------------------------------------

class Reader {
 public:
  explicit Reader(std::string_view bytes) : r_(bytes) {}

  std::uint8_t type() { return r_.u8(); }

  template <typename T>
  void get(const char* name, T& value, Bounds bounds) {
    if constexpr (std::same_as<T, std::string>) {
      text(name, value, bounds);
    } else if constexpr (kIsList<T>) {
      value.resize(count(name, bounds));
      for (auto& element : value) get(name, element, Bounds{0, bounds.text_bytes});
    } else if constexpr (kIsOptional<T>) {
      bool present = false;
      get(name, present, bounds);
      if (present) get(name, value.emplace(), bounds);
    } else if constexpr (IsWrapped<T>) {
      get(name, value.value, bounds);
    } else if constexpr (IsDuration<T>) {
      value = std::chrono::milliseconds(checked(name, r_.i64(), bounds));
    } else if constexpr (IsByte<T>) {
      const std::uint8_t byte = r_.u8();
      if (byte > last_of<T>()) complain(std::string("unknown ") + name + " " + std::to_string(byte));
      value = static_cast<T>(byte);
    } else if constexpr (std::same_as<T, std::uint16_t>) {
      value = r_.u16();
    } else if constexpr (std::same_as<T, std::uint32_t>) {
      value = static_cast<T>(checked(name, r_.u32(), bounds));
    } else if constexpr (std::same_as<T, std::uint64_t>) {
      value = r_.u64();
    } else if constexpr (std::integral<T>) {
      value = static_cast<T>(checked(name, r_.i64(), bounds));
    } else {
      for_each_field(value, [&](const auto& field, auto& member) { get(field.name, member, field.bounds); });
      if constexpr (requires { Described<T>::problem(value); }) {
        std::string why = r_.failed() ? "" : Described<T>::problem(value);
        if (!why.empty()) complain(std::move(why));
      }
    }
  }

  std::optional<Error> problem(const char* message) const {
    if (r_.finished()) return std::nullopt;
    std::string why = problem_;
    if (why.empty()) why = r_.failed() ? "cut short" : std::to_string(r_.remaining()) + " bytes too many";
    return Error(Errc::malformed, std::string(message) + " message: " + why);
  }

 private:
  std::int64_t checked(const char* name, std::int64_t value, Bounds bounds) {
    if (!r_.failed() && (value < bounds.min || value > bounds.max)) {
      complain(std::string(name) + " " + std::to_string(value) + " is not in " + std::to_string(bounds.min) + ".." +
               std::to_string(bounds.max));
    }
    return value;
  }
  void text(const char* name, std::string& value, Bounds bounds) {
    value = r_.text(static_cast<std::uint32_t>(bounds.max));
    if (r_.failed()) {
      complain(std::string(name) + " is cut short or longer than " + std::to_string(bounds.max) + " bytes");
    } else if (value.empty() && bounds.min > 0) {
      complain(std::string(name) + " is empty");
    }
  }
  std::uint32_t count(const char* name, Bounds bounds) {
    const std::uint32_t n = r_.u32();
    // Each element takes at least one byte, so a count beyond what is there is a lie.
    if (n <= bounds.max && n <= r_.remaining()) return n;
    complain(std::string(name) + ": " + std::to_string(n) + " elements");
    return 0;
  }
  // Only the first thing counts: after it, all that is read is nothing.
  void complain(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
    r_.fail();
  }

  WireReader r_;
  std::string problem_;
};

template <typename Variant, typename T>
Result<Variant> decode_as(Reader& r) {
  T message;
  r.get("", message, Bounds());
  if (auto problem = r.problem(Described<T>::frame.name)) return std::move(*problem);
  return Variant(std::move(message));
}

template <typename T, typename... Ts>
constexpr bool numbers_differ() {
  if constexpr (sizeof...(Ts) == 0) {
    return true;
  } else {
    return ((Described<T>::frame.type != Described<Ts>::frame.type) && ...) && numbers_differ<Ts...>();
  }
}

template <typename... Ts>
Result<std::variant<Ts...>> decode_frame(std::string_view frame, const char* from,
                                         std::type_identity<std::variant<Ts...>>) {
  static_assert(numbers_differ<Ts...>());
  using Variant = std::variant<Ts...>;
  Reader r(frame);
  const std::uint8_t type = r.type();
  Result<Variant> result = Error(Errc::malformed, "message of unknown type " + std::to_string(type) + " from " + from);
  (void)((Described<Ts>::frame.type == type ? (result = decode_as<Variant, Ts>(r), true) : false) || ...);
  return result;
}

}  // namespace

std::string encode(const AgentMessage& message) { return encode_frame(message); }
std::string encode(const ServerMessage& message) { return encode_frame(message); }
std::string encode(const OperatorMessage& message) { return encode_frame(message); }

Result<AgentMessage> decode_agent(std::string_view frame) {
  return decode_frame(frame, "an agent", std::type_identity<AgentMessage>());
}
Result<ServerMessage> decode_server(std::string_view frame) {
  return decode_frame(frame, "the rendezvous", std::type_identity<ServerMessage>());
}
Result<OperatorMessage> decode_operator(std::string_view frame) {
  return decode_frame(frame, "an operator", std::type_identity<OperatorMessage>());
}

}  // namespace ddprun::rdzv
