#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/unique_fd.h"
#include "rendezvous/net/event_set.h"
#include "rendezvous/store/store_session.h"

namespace ddprun::rendezvous {

class StoreDeadlines;

// The socket of one store client: its session, the answers that the kernel did not take yet, and what it waits for.
class StoreConnection final : public EventSet::Watcher {
 public:
  // Who is told of events.
  class Owner {
   public:
    virtual void on_events(StoreConnection& connection, std::uint32_t events) = 0;

   protected:
    ~Owner() = default;
  };

  StoreConnection(Owner& owner, UniqueFd fd, EventSet::Tag tag, Store& store, const StoreSessionLimits& limits,
                  std::array<std::uint64_t, kStoreOpCount>& counts);

  void on_events(std::uint32_t events) override { owner_.on_events(*this, events); }

  int fd() const { return fd_.get(); }
  EventSet::Tag tag() const { return tag_; }
  ClientId client() const { return EventSet::index_of(tag_); }
  StoreSession& session() { return session_; }

  // Sends `head` and `tail`; what the kernel does not take, or all if something waits already, is kept. `sent` grows by
  // the bytes that went out. False: the connection is broken.
  bool send(std::string_view head, std::string_view tail, std::uint64_t& sent);
  // The kernel takes bytes again. False: it is broken.
  bool send_kept(std::uint64_t& sent);
  std::size_t unsent() const { return out_.size() - out_offset_; }
  std::string& kept() { return out_; }  // to append answers to when something waits already

  // The client will send no more; only what is kept is left to deliver.
  bool finished() const { return finished_; }
  void finish() { finished_ = true; }

  // Asks the set for the events that are wanted now: reading stops while `max_unread` bytes wait for the client.
  void update_interest(EventSet& events, std::size_t max_unread);
  bool reads() const;
  std::size_t buffered() const { return session_.buffered() + out_.capacity(); }

  std::size_t accounted = 0;  // of it, in the service's sum
  std::size_t half_mark = 0;  // of a half request: what had come when its time began

 private:
  friend class StoreDeadlines;

  Owner& owner_;
  UniqueFd fd_;
  EventSet::Tag tag_;
  StoreSession session_;
  std::string out_;  // from out_offset_ on
  std::size_t out_offset_ = 0;
  std::uint32_t interest_;
  bool finished_ = false;
  // StoreDeadlines.
  StoreDeadlines* list_ = nullptr;
  StoreConnection* previous_ = nullptr;
  StoreConnection* next_ = nullptr;
  TimePoint limit_;
};

}  // namespace ddprun::rendezvous
