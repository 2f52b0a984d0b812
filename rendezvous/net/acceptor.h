#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/tcp.h"
#include "common/unique_fd.h"
#include "rendezvous/net/event_set.h"
#include "rendezvous/net/refusal_log.h"
#include "rendezvous/net/strangers.h"

namespace ddprun::rendezvous {

// One port for all protocols: takes connections, waits for the first bytes of each and gives it, by the first one, to
// whom it belongs. Knows none of the protocols. Limits: those of Strangers, and a spare descriptor for the moment when
// there is no other. One thread.
class Acceptor {
 public:
  // A connection with its first bytes. It stands in the event set, for reading; its next watcher is the taker's, or it
  // is taken out (to_socket). Left alone, it is closed.
  struct Opening {
    UniqueFd fd;
    EventSet::Tag tag;
    std::string_view bytes;  // live during the call
    Stranger& stranger;      // for Strangers::replace(), where the first bytes do not say enough
  };
  using Taker = std::function<void(Opening opening)>;

  struct Counts {
    std::uint64_t accepted = 0;
    std::uint64_t refused = 0;  // no descriptor was left
    std::uint64_t silent = 0;   // turned away
  };

  Acceptor(boost::asio::io_context& io, Listener listener, Strangers::Limits limits);
  ~Acceptor();  // close()
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Before the context runs. `first` < 0: all that have no taker of their own.
  static constexpr int kAnyOther = -1;
  void set_taker(int first, Taker taker);

  // Between two rounds on one port. hold(): takes no new ones, which wait in the kernel's queue, and closes those that
  // have no taker yet. serve(): takes them, but for those whose client has ended meanwhile.
  void hold();
  void serve();
  // Closes connections of this class that no taker has yet, also those in the kernel's queue; not the silent ones.
  void drop_spoken(int first);
  void stop();   // nobody listens any more; those that are connected are taken on
  void close();  // and closes those without a taker

  EventSet& events() { return *events_; }
  const std::shared_ptr<Strangers>& strangers() { return strangers_; }
  boost::asio::io_context& context() { return io_; }
  // An opening as an Asio socket; nullopt: it could not be had.
  std::optional<boost::asio::ip::tcp::socket> to_socket(Opening& opening);
  std::uint16_t port() const { return port_; }
  std::size_t pending() const { return pending_count_; }  // without a taker
  const Counts& counts() const { return counts_; }

 private:
  struct Pending;
  struct Door;

  std::size_t accept_all(std::size_t which);
  bool add(UniqueFd fd, const PeerKey& key, TimePoint now);
  void on_first_bytes(Pending& pending);
  void remove(Pending& pending);
  void note_refusal();
  void watch();
  void pause();
  const Taker* taker_of(unsigned char first) const;

  boost::asio::io_context& io_;
  const std::uint16_t port_;
  std::vector<UniqueFd> listeners_;
  std::shared_ptr<EventSet> events_;
  std::shared_ptr<Strangers> strangers_;
  std::unique_ptr<Door> door_;
  UniqueFd spare_;
  std::vector<std::unique_ptr<Pending>> pending_;  // by EventSet::index_of
  std::size_t pending_count_ = 0;
  std::vector<Taker> takers_;  // by the first byte, [256] the others
  std::vector<char> scratch_;  // first bytes; one for all
  std::shared_ptr<boost::asio::steady_timer> pause_;
  bool held_ = false;
  bool closed_ = false;
  Counts counts_;
  RefusalLog descriptor_log_, silent_log_;
};

}  // namespace ddprun::rendezvous
