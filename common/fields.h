#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

// A struct that is described: its members, each listed once with its name and bounds. What reads, writes, checks and
// compares it is made from that list. For the few files that do so; no header that others use includes this one.
namespace ddprun {

// Of a number or a duration in ms: its value; of a text: its bytes; of a list: its elements.
struct Bounds {
  std::int64_t min = 0;
  std::int64_t max = 0;
  std::uint32_t text_bytes = 0;  // of each text of a list
};

template <typename Owner, typename Member>
struct Field {
  const char* name;
  Member Owner::*member;
  Bounds bounds;
  const char* option = nullptr;  // the flag that sets it
};

template <typename Owner, typename Member>
constexpr Field<Owner, Member> field(const char* name, Member Owner::*member, Bounds bounds = {},
                                     const char* option = nullptr) {
  return {name, member, bounds, option};
}

// Described<T>::fields is a std::tuple of Field; Described<T>::problem(const T&), where it exists, says what is wrong
// although each member is in its bounds ("" = nothing).
template <typename T>
struct Described;

// visit(field, object.member) for each member, in order.
template <typename T, typename Visit>
constexpr void for_each_field(T& object, Visit visit) {
  std::apply([&](const auto&... f) { (visit(f, object.*(f.member)), ...); }, Described<std::remove_const_t<T>>::fields);
}

}  // namespace ddprun
