#pragma once

#include <sys/socket.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "common/clock.h"

namespace ddprun::rendezvous {

// What counts as one address: an IPv4 address, or a network of IPv6 (/64), of which one host has as many as it likes.
struct PeerKey {
  std::array<std::uint8_t, 16> bytes{};
  bool operator==(const PeerKey&) const = default;
  static PeerKey of(const sockaddr_storage& address);
  static PeerKey of(int fd);  // of its peer
};

// A connection of which nobody knows yet whose it is. In the list of Strangers from enter() to leave().
class Stranger {
 public:
  Stranger() = default;
  virtual ~Stranger() = default;
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  virtual int descriptor() const = 0;
  // It must go; it calls leave() itself.
  virtual void turn_away(std::string_view why) = 0;

 private:
  friend class Strangers;
  Stranger* previous_ = nullptr;
  Stranger* next_ = nullptr;
  TimePoint since_;
  PeerKey key_;
  bool listed_ = false;
};

// Those who have not said, or not proven, who they are: not many, and not for long. Thousands of agents start at the
// same moment, often behind one address, and are strangers for some milliseconds: so nobody is turned away for the
// number alone, but who is silent is. One whose bytes wait in the kernel is not: it is we who are slow.
class Strangers : public std::enable_shared_from_this<Strangers> {
 public:
  struct Limits {
    std::chrono::milliseconds time{5'000};      // for each
    std::chrono::milliseconds patience{1'000};  // ... while there are more than:
    std::size_t in_all = 64;
    std::size_t per_address = 8;
    std::size_t most = 0;  // beyond it the oldest of the address with most of them goes at once; 0 = no such bound
  };

  Strangers(boost::asio::io_context& io, Limits limits) : limits_(limits), timer_(io) {}

  void enter(Stranger& stranger, const PeerKey& key, TimePoint now);
  void leave(Stranger& stranger);
  // `by` is the same connection, in other hands.
  void replace(Stranger& stranger, Stranger& by);
  // For a newcomer: one goes who is silent. False: there is none.
  bool make_room();
  void close() { timer_.cancel(); }

  std::size_t size() const { return size_; }
  std::uint64_t turned_away() const { return turned_away_; }

 private:
  struct KeyHash {
    std::size_t operator()(const PeerKey& key) const noexcept;
  };
  void look_at(TimePoint when);
  void on_time();
  bool crowded(const Stranger& stranger) const;

  const Limits limits_;
  boost::asio::steady_timer timer_;
  TimePoint timer_at_ = TimePoint::max();
  Stranger* first_ = nullptr;  // the oldest
  Stranger* last_ = nullptr;
  std::size_t size_ = 0;
  std::unordered_map<PeerKey, std::size_t, KeyHash> by_address_;
  std::uint64_t turned_away_ = 0;
};

}  // namespace ddprun::rendezvous
