#pragma once

#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "rendezvous/membership/known_world.h"

namespace ddprun::rendezvous {

// What a daemon leaves for the next one on its port, so that it forms no round of a run id before the world that it
// does not know has ended: text, one line "LOST_AFTER_MS ROUND RUN_ID_IN_HEX" a world, after a heading with a version.
// Written as a new file that replaces the old one, synced: T_lost may be longer than a host needs to start again.

// Errors: malformed (not such a file, or cut short), system. A file that does not exist is empty.
Result<std::vector<KnownWorld>> read_state(const std::string& path);

// The file, for as long as a daemon writes it. Two daemons would overwrite each other's worlds, so it is locked
// (FILE.lock, which stays) until this object ends.
class StateFile {
 public:
  // Errors: refused (another process holds it), system.
  static Result<StateFile> open(const std::string& path);
  // Replaces what is there. Blocks until the disk has it (two syncs): see StateWriter. Errors: system; the old content
  // stays, or if only the last sync failed, the new.
  Result<void> write(const std::vector<KnownWorld>& worlds) const;

 private:
  StateFile(std::string path, UniqueFd lock);
  std::string path_;
  UniqueFd lock_;
};

}  // namespace ddprun::rendezvous
