#pragma once

#include <string>

#include "common/result.h"
#include "common/tls_engine.h"

// Where a server's secrets lie. Files are read anew for each handshake, so that a rotation or a new job needs no
// restart.
namespace ddprun {

struct SecretPlaces {
  std::string folder;         // --secrets-dir: RUN_ID.secret (secret_file_name()), else default.secret
  std::string run_id;         // an embedded server serves this job only ...
  std::string job_file;       // ... by this file (--rdzv-secret-file)
  std::string operator_file;  // --operator-secret-file; without one, whoever holds job_file may operate the job

  bool for_agents() const { return !folder.empty() || !job_file.empty(); }
  bool for_operators() const { return !operator_file.empty() || !job_file.empty(); }
  bool any() const { return for_agents() || for_operators(); }
};

// Looks once at all that is named, for one clear line at the start. Errors: invalid_argument (a folder that others may
// write to), not_found, malformed, system.
Result<void> check_secrets(const SecretPlaces& places);

SecretFinder secret_finder(SecretPlaces places);

}  // namespace ddprun
