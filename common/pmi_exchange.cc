#include "common/pmi_exchange.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>

#include "common/unique_fd.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxWord = 900;
constexpr std::size_t kMaxAnswer = 64 * 1024;
constexpr char kKey[] = "ddprun.endpoint";

Error too_late(const EngineTask& task) {
  return Error(Errc::timed_out, fmt::format("not all {} tasks of {} came together in time; --rdzv-endpoint=HOST:PORT "
                                            "does without that",
                                            task.size, engine_starter(task.engine)));
}

// Whoever starts us may have blocked what ends us, to take it later.
bool asked_to_end() {
  sigset_t waiting;
  sigemptyset(&waiting);
  ::sigpending(&waiting);
  return sigismember(&waiting, SIGTERM) == 1 || sigismember(&waiting, SIGINT) == 1 ||
         sigismember(&waiting, SIGHUP) == 1 || sigismember(&waiting, SIGQUIT) == 1;
}

// Waits until `fd` is readable. Errors: timed_out, cancelled.
Result<void> wait_readable(const EngineTask& task, int fd, TimePoint deadline) {
  constexpr std::chrono::milliseconds kLook{200};
  while (true) {
    if (asked_to_end()) return Error(Errc::cancelled, "ended by a signal while the nodes met");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
    if (left.count() <= 0) return too_late(task);
    pollfd one{fd, POLLIN, 0};
    const int ready = ::poll(&one, 1, static_cast<int>(std::min(left, kLook).count()));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return Error::from_errno(errno, "poll");
  }
}

// --- PMI-1: lines of "cmd=NAME key=value ...", an answer for each

class Pmi1 {
 public:
  Pmi1(const EngineTask& task, int fd, TimePoint deadline) : task_(task), fd_(fd), deadline_(deadline) {}

  // Errors: those of the exchange; refused where the answer's rc is not 0.
  Result<std::string> call(std::string line) {
    line += '\n';
    std::string_view rest = line;
    while (!rest.empty()) {
      const ssize_t sent = ::write(fd_, rest.data(), rest.size());
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return Error::from_errno(errno, "PMI_FD");
      rest.remove_prefix(static_cast<std::size_t>(sent));
    }
    auto answer = read_line();
    if (!answer) return answer;
    const std::string rc = field(*answer, "rc");
    if (!rc.empty() && rc != "0")
      return Error(Errc::refused, fmt::format("PMI: '{}' is answered by '{}'", rest, *answer));
    return answer;
  }

  static std::string field(const std::string& line, const std::string& name) {
    const std::string text = " " + line + " ";
    const auto at = text.find(" " + name + "=");
    if (at == std::string::npos) return "";
    const auto begin = at + name.size() + 2;
    return text.substr(begin, text.find(' ', begin) - begin);
  }

 private:
  Result<std::string> read_line() {
    while (true) {
      if (const auto end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      if (buffer_.size() > kMaxAnswer) return Error(Errc::malformed, "PMI: an answer without an end");
      if (auto ready = wait_readable(task_, fd_, deadline_); !ready) return std::move(ready).error();
      std::array<char, 4096> bytes{};
      const ssize_t got = ::read(fd_, bytes.data(), bytes.size());
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got < 0) return Error::from_errno(errno, "PMI_FD");
      if (got == 0) return Error(Errc::peer_closed, "PMI: the engine's daemon is gone");
      buffer_.append(bytes.data(), static_cast<std::size_t>(got));
    }
  }

  const EngineTask& task_;
  int fd_;
  TimePoint deadline_;
  std::string buffer_;
};

// Blanks end a value there.
std::string packed(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '|');
  return text;
}
std::string unpacked(std::string text) {
  std::replace(text.begin(), text.end(), '|', ' ');
  return text;
}

Result<Exchanged> by_pmi1(const EngineTask& task, const std::string& mine, TimePoint deadline) {
  const std::string text = process_environment()("PMI_FD").value_or("");
  int fd = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), fd);
  if (failure != std::errc() || end != text.data() + text.size() || ::fcntl(fd, F_GETFD) < 0) {
    return Error(Errc::not_found, fmt::format("PMI_FD='{}' is no open descriptor (a wrapper closed it, or -pmi-port): "
                                              "give --rdzv-endpoint=HOST:PORT",
                                              text));
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // not for our workers
  Pmi1 pmi(task, fd, deadline);
  Exchanged out;
  auto answer = pmi.call("cmd=init pmi_version=1 pmi_subversion=1");
  if (answer) answer = pmi.call("cmd=get_my_kvsname");
  if (!answer) return std::move(answer).error();
  out.job = Pmi1::field(*answer, "kvsname");
  if (task.rank == 0) {
    answer = pmi.call(fmt::format("cmd=put kvsname={} key={} value={}", out.job, kKey, packed(mine)));
  }
  if (answer) answer = pmi.call("cmd=barrier_in");
  if (answer) answer = pmi.call(fmt::format("cmd=get kvsname={} key={}", out.job, kKey));
  if (!answer) return std::move(answer).error();
  out.word = unpacked(Pmi1::field(*answer, "value"));
  if (auto done = pmi.call("cmd=finalize"); !done) return std::move(done).error();
  return out;
}

// --- PMIx 4, as far as it is needed: <pmix_common.h> would be a build dependency for six calls

struct PmixProc {
  char nspace[256];
  std::uint32_t rank;
};
struct PmixValue {
  std::uint16_t type;
  union {
    char* string;
    std::uint64_t room[3];
  } data;
};
constexpr std::uint16_t kPmixString = 3;
constexpr std::uint8_t kPmixGlobal = 3;
constexpr std::size_t kPmixKey = 512;

// Runs in the child. What it returns is written to the parent: 'W' and the word, or 'E' and a sentence.
std::string pmix_child(const EngineTask& task, const std::string& mine) {
  void* const library = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return std::string("N") + ::dlerror();
  const auto init = reinterpret_cast<int (*)(PmixProc*, void*, std::size_t)>(::dlsym(library, "PMIx_Init"));
  const auto put = reinterpret_cast<int (*)(std::uint8_t, const char*, PmixValue*)>(::dlsym(library, "PMIx_Put"));
  const auto commit = reinterpret_cast<int (*)()>(::dlsym(library, "PMIx_Commit"));
  const auto fence =
      reinterpret_cast<int (*)(const PmixProc*, std::size_t, const void*, std::size_t)>(::dlsym(library, "PMIx_Fence"));
  const auto get = reinterpret_cast<int (*)(const PmixProc*, const char*, const void*, std::size_t, PmixValue**)>(
      ::dlsym(library, "PMIx_Get"));
  const auto finalize = reinterpret_cast<int (*)(const void*, std::size_t)>(::dlsym(library, "PMIx_Finalize"));
  if (init == nullptr || put == nullptr || commit == nullptr || fence == nullptr || get == nullptr ||
      finalize == nullptr) {
    return "Nlibpmix.so.2 lacks a call";
  }
  PmixProc self{};
  if (const int rc = init(&self, nullptr, 0); rc != 0) return fmt::format("EPMIx_Init: {}", rc);
  char key[kPmixKey] = {};
  std::strncpy(key, kKey, sizeof key - 1);
  std::string word = mine;
  int rc = 0;
  if (task.rank == 0) {
    PmixValue value{};
    value.type = kPmixString;
    value.data.string = word.data();
    rc = put(kPmixGlobal, key, &value);
  }
  if (rc == 0) rc = commit();
  if (rc == 0) rc = fence(nullptr, 0, nullptr, 0);
  PmixValue* found = nullptr;
  if (rc == 0) {
    PmixProc first = self;
    first.rank = 0;
    rc = get(&first, key, nullptr, 0, &found);
  }
  std::string result = fmt::format("EPMIx: {}", rc);
  if (rc == 0 && found != nullptr && found->type == kPmixString) result = std::string("W") + found->data.string;
  finalize(nullptr, 0);
  return result;
}

Result<Exchanged> by_pmix(const EngineTask& task, const std::string& mine, TimePoint deadline) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Error::from_errno(errno, "pipe");
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno(errno, "fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string result = pmix_child(task, mine);
    [[maybe_unused]] const ssize_t written = ::write(theirs.get(), result.data(), result.size());
    ::_exit(0);
  }
  theirs.reset();
  std::string answer;
  Result<void> waited;
  while (waited) {
    waited = wait_readable(task, ours.get(), deadline);
    if (!waited) break;
    std::array<char, 4096> bytes{};
    const ssize_t got = ::read(ours.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    answer.append(bytes.data(), static_cast<std::size_t>(got));
  }
  if (!waited) ::kill(child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!waited) return std::move(waited).error();
  if (answer.empty()) return Error(Errc::system, "libpmix.so.2 ended the process that asked it");
  const std::string text = answer.substr(1);
  if (answer[0] == 'W') return Exchanged{text, ""};
  return Error(answer[0] == 'N' ? Errc::not_found : Errc::system,
               text + ": without it Open MPI tells no address; give --rdzv-endpoint=HOST:PORT");
}

}  // namespace

Result<Exchanged> pmi_exchange(const EngineTask& task, const std::string& mine, TimePoint deadline) {
  const std::string word = mine.substr(0, kMaxWord);
  return task.engine == Engine::hydra ? by_pmi1(task, word, deadline) : by_pmix(task, word, deadline);
}

}  // namespace ddprun
