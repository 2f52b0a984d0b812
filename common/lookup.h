#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"

namespace ddprun {

// One question to the host's resolver: which addresses has this name? The resolver has no time limit of its own and
// cannot be interrupted (a dead DNS server costs tens of seconds), so it runs on a thread that is left behind when
// nobody waits any more: neither the destructor nor the process's end waits for it. (c-ares could be cancelled, but
// does not know nsswitch.conf: mDNS, LDAP, systemd's own names.)
class Lookup {
 public:
  // Numeric addresses, each once, in the resolver's order; a zone ("%eth0") stays with its address. Never empty.
  using Addresses = std::vector<std::string>;

  // Asks. Numeric hosts and "localhost" (RFC 6761: 127.0.0.1, then ::1) are answered at once.
  explicit Lookup(const std::string& host);

  // Readable once the answer is there; -1 when it is there already. Belongs to this object.
  int fd() const;
  // nullopt: not yet. Errors: not_found (name and reason), system (no thread, no descriptor).
  std::optional<Result<Addresses>> answer() const;
  // Waits in this thread. Errors: those of answer(), timed_out.
  Result<Addresses> wait(TimePoint deadline) const;

 private:
  void ask_on_a_thread();

  struct State;
  std::shared_ptr<State> state_;  // the thread's too
};

}  // namespace ddprun
