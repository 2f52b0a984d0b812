#include "worker/ranks/own_store.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <string_view>
#include <vector>

#include "common/options.h"

namespace ddprun::trainer {
namespace {

// Beside us, as built and as installed; ../../bin where a package keeps us in PREFIX/libexec/ddprun; PATH.
std::string find_ddprun() {
  std::vector<std::string> folders;
  std::array<char, PATH_MAX> path{};
  const auto size = ::readlink("/proc/self/exe", path.data(), path.size());
  if (size > 0 && size < static_cast<ssize_t>(path.size())) {
    const std::string_view whole(path.data(), static_cast<std::size_t>(size));
    const std::string own(whole.substr(0, whole.rfind('/')));
    folders = {own, own + "/../../bin"};
  }
  const std::string search = process_environment()("PATH").value_or("");
  for (std::size_t at = 0; at < search.size();) {
    const auto end = std::min(search.find(':', at), search.size());
    if (end > at) folders.push_back(search.substr(at, end - at));
    at = end + 1;
  }
  for (const auto& folder : folders) {
    std::string candidate = folder + "/ddprun";
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

}  // namespace

Result<std::unique_ptr<OwnStore>> OwnStore::serve(Listener listener) {
  const std::string program = find_ddprun();
  if (program.empty()) {
    return Error(
        Errc::not_found,
        "rank 0 of a world without a launcher serves its store with ddprun, which is neither beside trainer nor "
        "in PATH: install it there, or start the trainer with it");
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Error::from_errno(errno, "pipe");
  UniqueFd theirs(ends[0]);
  UniqueFd ours(ends[1]);
  const std::string listen_text = std::to_string(listener.fd.get());
  const std::string life_text = std::to_string(theirs.get());
  std::array<const char*, 4> arguments{"ddprun-store", listen_text.c_str(), life_text.c_str(), nullptr};
  // Its output is nobody's, and must not keep a reader of ours waiting; its errors are.
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno(errno, "fork");
  if (child == 0) {
    ::fcntl(listener.fd.get(), F_SETFD, 0);
    ::fcntl(theirs.get(), F_SETFD, 0);
    ::dup2(null.get(), STDIN_FILENO);
    ::dup2(null.get(), STDOUT_FILENO);
    ::execv(program.c_str(), const_cast<char* const*>(arguments.data()));
    ::_exit(127);
  }
  return std::unique_ptr<OwnStore>(new OwnStore(child, std::move(ours)));
}

OwnStore::~OwnStore() {
  life_.reset();
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace ddprun::trainer
