#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/crypto.h"
#include "common/result.h"

// The secret of a job, or of an operator, as it lies in a file:
//
//   ddprun-secret-1 <base64 of 32 bytes>
//
// one a line; empty lines and those that begin with '#' mean nothing. Several: a rotation is going on; the first signs,
// all verify. No error quotes what a file holds.
namespace ddprun {

inline constexpr std::size_t kMaxSecretFileBytes = 4096;
inline constexpr std::size_t kMaxSecrets = 8;

using Secrets = std::vector<Key>;  // never empty

// Errors: malformed, naming the line.
Result<Secrets> parse_secrets(std::string_view text);
std::string format_secret(const Key& secret);  // one line with its end

// A regular file (no link) of mode 600 or less, of our own user or of root. `what` stands in front of each error: the
// option that named the file. Errors: not_found, invalid_argument, malformed, system.
Result<Secrets> read_secrets(const std::string& path, std::string_view what);

// A new secret in a new file of mode 600; never writes over anything. Errors: invalid_argument when something of this
// name is there, not_found (no such folder), system.
Result<void> create_secret_file(const std::string& path);

// The file of a run id in a folder of secrets: the id itself where all its characters are letters, digits, '.', '_' or
// '-' and it begins with none of "."; all others are written as %XX. Never a way out of the folder.
std::string secret_file_name(std::string_view run_id);

}  // namespace ddprun
