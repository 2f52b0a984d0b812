#include "rendezvous/store/store_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ddprun::rendezvous {

namespace {

constexpr std::size_t kKeepOut = 4096;  // reply buffer that an idle connection may keep

}  // namespace

StoreConnection::StoreConnection(Owner& owner, UniqueFd fd, EventSet::Tag tag, Store& store,
                                 const StoreSessionLimits& limits, std::array<std::uint64_t, kStoreOpCount>& counts)
    : owner_(owner),
      fd_(std::move(fd)),
      tag_(tag),
      session_(store, EventSet::index_of(tag), limits, counts),
      interest_(EPOLLIN) {}

bool StoreConnection::send(std::string_view head, std::string_view tail, std::uint64_t& sent) {
  if (unsent() > 0) {
    out_.append(head);
    out_.append(tail);
    return true;
  }
  while (!head.empty()) {
    ssize_t n = 0;
    if (tail.empty()) {
      n = ::send(fd_.get(), head.data(), head.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
      iovec parts[2] = {{const_cast<char*>(head.data()), head.size()}, {const_cast<char*>(tail.data()), tail.size()}};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = 2;
      n = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (n > 0) {
      sent += static_cast<std::uint64_t>(n);
      const std::size_t of_head = std::min(head.size(), static_cast<std::size_t>(n));
      head.remove_prefix(of_head);
      tail.remove_prefix(static_cast<std::size_t>(n) - of_head);
      if (head.empty()) {
        head = tail;
        tail = {};
      }
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    out_.reserve(head.size() + tail.size());
    out_.assign(head);
    out_.append(tail);
    out_offset_ = 0;
    return true;
  }
  return true;
}

bool StoreConnection::send_kept(std::uint64_t& sent) {
  while (unsent() > 0) {
    const ssize_t n = ::send(fd_.get(), out_.data() + out_offset_, unsent(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<std::uint64_t>(n);
      out_offset_ += static_cast<std::size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    return false;
  }
  if (unsent() == 0) {
    out_offset_ = 0;
    out_.clear();
    if (out_.capacity() > kKeepOut) std::string().swap(out_);
  } else if (out_offset_ > out_.size() / 2) {
    out_.erase(0, out_offset_);
    out_offset_ = 0;
  }
  return true;
}

void StoreConnection::update_interest(EventSet& events, std::size_t max_unread) {
  std::uint32_t wanted = unsent() > 0 ? EPOLLOUT : 0u;
  if (!finished_ && !session_.paused() && unsent() <= max_unread) wanted |= EPOLLIN;
  if (wanted == interest_) return;
  interest_ = wanted;
  events.modify(tag_, fd_.get(), wanted);
}

bool StoreConnection::reads() const { return (interest_ & EPOLLIN) != 0; }

}  // namespace ddprun::rendezvous
