#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::rendezvous {

// Many sockets in one level-triggered epoll set, which Asio watches as one descriptor. Why not one Asio operation per
// socket: a store's request is 20 bytes and a hash look-up, so the event loop is the cost; here an event costs no
// system call to take again. One thread, that of the context.
class EventSet : public std::enable_shared_from_this<EventSet> {
 public:
  // Of one descriptor. May be gone after the call.
  class Watcher {
   public:
    virtual void on_events(std::uint32_t events) = 0;

   protected:
    ~Watcher() = default;
  };
  // Of listening sockets, which come first: when the kernel's queue of new connections overflows, their clients try
  // again after a whole second. Both calls return how many connections were taken.
  class Doorkeeper {
   public:
    virtual std::size_t on_listener(std::size_t which) = 0;
    virtual std::size_t look_again() = 0;

   protected:
    ~Doorkeeper() = default;
  };
  // Of a watched descriptor. Its low half, index_of(), is small and is used again, the whole is not.
  using Tag = std::uint64_t;

  explicit EventSet(boost::asio::io_context& io);
  void start();  // once
  void close();  // nobody is called any more

  // False: the kernel has no room for it.
  bool add(int fd, std::uint32_t events, Watcher& watcher, Tag& tag);
  void set_watcher(Tag tag, Watcher& watcher) { slots_[index_of(tag)].watcher = &watcher; }
  const Watcher* watcher(Tag tag) const { return slots_[index_of(tag)].watcher; }
  void modify(Tag tag, int fd, std::uint32_t events);
  // The descriptor is to be closed right after this; one that lives on must be taken out with release().
  void forget(Tag tag);
  void release(Tag tag, int fd);
  bool watches(Tag tag) const {
    return index_of(tag) < slots_.size() && slots_[index_of(tag)].watcher != nullptr &&
           slots_[index_of(tag)].tag == tag;
  }

  void set_doorkeeper(Doorkeeper* doorkeeper) { doorkeeper_ = doorkeeper; }
  void watch_listener(int fd, std::size_t which);
  void unwatch_listener(int fd);
  void on_turn_end(std::function<void()> hook) { turn_end_ = std::move(hook); }

  static std::uint32_t index_of(Tag tag) { return static_cast<std::uint32_t>(tag & 0xffffffffu); }

 private:
  struct Slot {
    Watcher* watcher = nullptr;
    Tag tag = 0;
  };
  struct Batch;

  void arm();
  void turn();
  void handle(const Batch& batch);

  UniqueFd epoll_;
  boost::asio::posix::stream_descriptor source_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::uint32_t generation_ = 0;
  Doorkeeper* doorkeeper_ = nullptr;
  std::function<void()> turn_end_;
  bool closed_ = false;
};

}  // namespace ddprun::rendezvous
