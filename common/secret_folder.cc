#include "common/secret_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ddprun {

namespace {

constexpr const char* kFolder = "--secrets-dir";

Result<void> check_folder(const std::string& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return Error::from_errno(errno, std::string(kFolder) + " " + folder);
  const std::string where = std::string(kFolder) + " " + folder + ": ";
  if (!S_ISDIR(info.st_mode)) return Error(Errc::invalid_argument, where + "it is no folder");
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return Error(Errc::invalid_argument, where + "it belongs to uid " + std::to_string(info.st_uid) + ": chown it");
  }
  if ((info.st_mode & 022) != 0) {
    return Error(Errc::invalid_argument, where + "others may put files into it: chmod 700 it");
  }
  return Result<void>();
}

// Of that job, or else of all jobs. A name too long for a file is nobody's own.
Result<Secrets> of_folder(const std::string& folder, const std::string& run_id) {
  const std::string own = folder + "/" + secret_file_name(run_id);
  struct stat info {};
  if (::lstat(own.c_str(), &info) == 0 || (errno != ENOENT && errno != ENAMETOOLONG)) return read_secrets(own, kFolder);
  return read_secrets(folder + "/default.secret", kFolder);
}

Result<Secrets> find(const SecretPlaces& places, const PeerIdentity& identity) {
  if (identity.role == PeerRole::operator_tool) {
    if (!places.operator_file.empty()) return read_secrets(places.operator_file, "--operator-secret-file");
    if (!places.job_file.empty()) return read_secrets(places.job_file, "--rdzv-secret-file");
    return Error(Errc::not_found, "no --operator-secret-file");
  }
  if (!places.job_file.empty()) {
    if (identity.name == places.run_id) return read_secrets(places.job_file, "--rdzv-secret-file");
    return Error(Errc::not_found, "this rendezvous serves another job");
  }
  if (!places.folder.empty()) return of_folder(places.folder, identity.name);
  return Error(Errc::not_found, "no --secrets-dir");
}

}  // namespace

Result<void> check_secrets(const SecretPlaces& places) {
  if (!places.folder.empty()) {
    if (auto fine = check_folder(places.folder); !fine) return fine;
    const std::string all = places.folder + "/default.secret";
    if (::access(all.c_str(), F_OK) == 0) {
      if (auto secrets = read_secrets(all, kFolder); !secrets) return std::move(secrets).error();
    }
  }
  if (!places.job_file.empty()) {
    if (auto secrets = read_secrets(places.job_file, "--rdzv-secret-file"); !secrets) return std::move(secrets).error();
  }
  if (!places.operator_file.empty()) {
    auto secrets = read_secrets(places.operator_file, "--operator-secret-file");
    if (!secrets) return std::move(secrets).error();
  }
  return Result<void>();
}

SecretFinder secret_finder(SecretPlaces places) {
  return [places = std::move(places)](const PeerIdentity& identity) { return find(places, identity); };
}

}  // namespace ddprun
