#include "rendezvous/net/strangers.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace ddprun::rendezvous {

namespace {

// A peer that sends what we never come to read is silent in the end too.
constexpr int kTimesAtMost = 4;

bool is_silent(int fd) {
  char byte = 0;
  return ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

}  // namespace

PeerKey PeerKey::of(const sockaddr_storage& address) {
  PeerKey key;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    key.bytes[10] = key.bytes[11] = 0xff;
    std::memcpy(&key.bytes[12], &v4.sin_addr, 4);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    std::memcpy(key.bytes.data(), &v6.sin6_addr, mapped ? 16 : 8);
  }
  return key;
}

PeerKey PeerKey::of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return of(address);
}

std::size_t Strangers::KeyHash::operator()(const PeerKey& key) const noexcept {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()});
}

bool Strangers::crowded(const Stranger& stranger) const {
  return size_ > limits_.in_all || by_address_.at(stranger.key_) > limits_.per_address;
}

void Strangers::enter(Stranger& stranger, const PeerKey& key, TimePoint now) {
  stranger.since_ = now;
  stranger.key_ = key;
  stranger.listed_ = true;
  stranger.previous_ = last_;
  stranger.next_ = nullptr;
  (last_ ? last_->next_ : first_) = &stranger;
  last_ = &stranger;
  ++size_;
  ++by_address_[key];
  look_at(now + (crowded(stranger) ? limits_.patience : limits_.time));
  if (limits_.most > 0 && size_ > limits_.most) make_room();
}

void Strangers::leave(Stranger& stranger) {
  if (!stranger.listed_) return;
  stranger.listed_ = false;
  (stranger.previous_ ? stranger.previous_->next_ : first_) = stranger.next_;
  (stranger.next_ ? stranger.next_->previous_ : last_) = stranger.previous_;
  --size_;
  const auto found = by_address_.find(stranger.key_);
  if (--found->second == 0) by_address_.erase(found);
}

void Strangers::replace(Stranger& stranger, Stranger& by) {
  if (!stranger.listed_) return;
  by.previous_ = stranger.previous_;
  by.next_ = stranger.next_;
  by.since_ = stranger.since_;
  by.key_ = stranger.key_;
  by.listed_ = true;
  stranger.listed_ = false;
  (by.previous_ ? by.previous_->next_ : first_) = &by;
  (by.next_ ? by.next_->previous_ : last_) = &by;
}

bool Strangers::make_room() {
  // The oldest silent one of the address that has most strangers; those of that address may all have spoken.
  Stranger* found = nullptr;
  std::size_t most = 0;
  for (Stranger* stranger = first_; stranger != nullptr; stranger = stranger->next_) {
    const std::size_t number = by_address_.at(stranger->key_);
    if (number <= most || !is_silent(stranger->descriptor())) continue;
    found = stranger;
    most = number;
  }
  if (found == nullptr) return false;
  ++turned_away_;
  found->turn_away("too many connections that have not said whose they are");
  return true;
}

void Strangers::look_at(TimePoint when) {
  if (when >= timer_at_) return;
  timer_at_ = when;
  timer_.expires_at(when);
  timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self) return;
    self->timer_at_ = TimePoint::max();
    self->on_time();
  });
}

void Strangers::on_time() {
  const TimePoint now = SteadyClock::now();
  TimePoint next = TimePoint::max();
  for (Stranger* stranger = first_; stranger != nullptr;) {
    Stranger* const following = stranger->next_;
    const Duration age = now - stranger->since_;
    const Duration allowed = crowded(*stranger) ? limits_.patience : limits_.time;
    if (age < allowed) {
      // Those behind it are younger, but may have less time: the crowd of another address.
      const bool young = age < limits_.patience;
      next = std::min(next, stranger->since_ + (young ? std::min(allowed, Duration(limits_.patience)) : allowed));
      if (young) break;
    } else if (age < limits_.time * kTimesAtMost && !is_silent(stranger->descriptor())) {
      next = std::min(next, now + limits_.patience);
    } else {
      ++turned_away_;
      stranger->turn_away("it did not say in time whose it is");
    }
    stranger = following;
  }
  if (next != TimePoint::max()) look_at(next);
}

}  // namespace ddprun::rendezvous
