#include "common/error.h"

#include <cerrno>
#include <cstring>

namespace ddprun {

std::string_view to_string(Errc code) {
  switch (code) {
    case Errc::timed_out:
      return "timed out";
    case Errc::peer_closed:
      return "peer closed";
    case Errc::refused:
      return "refused";
    case Errc::cancelled:
      return "cancelled";
    case Errc::malformed:
      return "malformed";
    case Errc::invalid_argument:
      return "invalid argument";
    case Errc::not_found:
      return "not found";
    case Errc::not_executable:
      return "not executable";
    case Errc::unsupported:
      return "not supported";
    case Errc::exhausted:
      return "limit reached";
    case Errc::system:
      return "system error";
  }
  return "unknown";
}

static Errc errc_from_errno(int error_number) {
  switch (error_number) {
    case ENOENT:
      return Errc::not_found;
    case ECONNREFUSED:
      return Errc::refused;
    case EPIPE:
    case ECONNRESET:
      return Errc::peer_closed;
    case ETIMEDOUT:
      return Errc::timed_out;
    case ECANCELED:
      return Errc::cancelled;
    case EINVAL:
      return Errc::invalid_argument;
    case ENOSYS:
      return Errc::unsupported;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return Errc::exhausted;
    default:
      return Errc::system;
  }
}

Error Error::from_errno(int error_number, std::string what) {
  what += ": ";
  what += std::strerror(error_number);
  if (error_number == EFBIG) what += " (the limit on the size of files, ulimit -f, or the file system's)";
  return Error(errc_from_errno(error_number), std::move(what));
}

Error Error::with_context(std::string_view prefix) && {
  std::string message(prefix);
  message += ": ";
  message += message_;
  return Error(code_, std::move(message));
}

Error Error::with_context(std::string_view prefix) const& { return Error(*this).with_context(prefix); }

}  // namespace ddprun
