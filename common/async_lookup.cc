#include "common/async_lookup.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>

#include "common/deadline.h"

namespace ddprun {

namespace asio = boost::asio;

asio::awaitable<Result<Lookup::Addresses>> AsyncLookup::ask(std::string host, std::chrono::milliseconds limit) {
  constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
  Error stopped(Errc::cancelled, "the look-up of '" + host + "' was ended");
  if (cancelled_) co_return stopped;
  const Lookup lookup(host);
  if (const int fd = lookup.fd(); fd >= 0) {
    const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);  // what Asio watches, Asio closes
    if (own < 0) co_return Error::from_errno(errno, "cannot look up '" + host + "'");
    try {
      answer_.emplace(io_, own);
    } catch (const boost::system::system_error& error) {  // epoll has no room for one more
      ::close(own);
      co_return Error::from_errno(error.code().value(), "cannot look up '" + host + "'");
    }
    std::optional<Deadline> deadline;
    if (limit.count() > 0) {
      deadline.emplace(io_.get_executor(), limit, [this] {
        if (answer_) answer_->cancel();
      });
    }
    co_await answer_->async_wait(asio::posix::stream_descriptor::wait_read, as_tuple);
    answer_.reset();
  }
  if (cancelled_) co_return stopped;
  auto answer = lookup.answer();
  if (answer) co_return std::move(*answer);
  co_return Error(Errc::timed_out, "host name '" + host + "' was not resolved in time (DNS does not answer)");
}

void AsyncLookup::cancel() {
  cancelled_ = true;
  if (answer_) answer_->cancel();
}

}  // namespace ddprun
