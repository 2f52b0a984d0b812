#include "launcher/ctl/client.h"

#include <utility>

#include "common/tcp.h"
#include "common/wire.h"

namespace ddprun::launcher {

namespace {

constexpr std::size_t kMaxAnswer = 1u << 30;  // status of a million nodes takes some 300 MB

}  // namespace

Result<CtlClient> CtlClient::connect(const Endpoint& endpoint, std::chrono::milliseconds limit) {
  const TimePoint deadline = SteadyClock::now() + limit;
  auto fd = tcp_connect_once(endpoint, deadline);
  if (!fd) {
    return Error(fd.error().code(), "no rendezvous at " + endpoint.to_string() + ": " + fd.error().message() +
                                        "; name the job's with --rdzv-endpoint=HOST:PORT before the command (ddprun "
                                        "logs its own at the start)");
  }
  rdzv::Hello hello;
  hello.kind = rdzv::PeerKind::operator_tool;
  if (auto sent = write_all(fd->get(), rdzv::encode(hello), deadline); !sent) return std::move(sent).error();
  std::string fixed(rdzv::kHelloReplyFixedBytes, '\0');
  if (auto got = read_exact(fd->get(), fixed.data(), fixed.size(), deadline); !got) {
    return std::move(got).error().with_context(endpoint.to_string() + " does not answer as a rendezvous");
  }
  auto head = rdzv::decode_hello_reply_head(fixed);
  if (!head) return std::move(head).error().with_context(endpoint.to_string());
  std::string why(head->why_bytes, '\0');
  if (auto got = read_exact(fd->get(), why.data(), why.size(), deadline); !got) return std::move(got).error();
  if (!head->accepted || head->version != rdzv::kVersion) {
    return Error(Errc::refused, endpoint.to_string() + " refuses us: " + why);
  }
  return CtlClient(std::move(*fd), endpoint);
}

Result<rdzv::ServerMessage> CtlClient::read(TimePoint deadline) {
  char head[4];
  if (auto got = read_exact(fd_.get(), head, sizeof head, deadline); !got) return std::move(got).error();
  WireReader reader(std::string_view(head, sizeof head));
  const std::uint32_t length = reader.u32();
  if (length == 0 || length > rdzv::kMaxFrame) {
    return Error(Errc::malformed, "a frame of " + std::to_string(length) + " bytes");
  }
  std::string frame(length, '\0');
  if (auto got = read_exact(fd_.get(), frame.data(), frame.size(), deadline); !got) return std::move(got).error();
  return rdzv::decode_server(frame);
}

Result<rdzv::Reply> CtlClient::ask(const rdzv::OperatorMessage& message, std::chrono::milliseconds limit,
                                   const std::function<void(rdzv::ServerMessage)>& on_message) {
  if (auto sent = write_all(fd_.get(), rdzv::encode(message), SteadyClock::now() + limit); !sent) {
    return std::move(sent).error().with_context("rendezvous at " + endpoint_.to_string());
  }
  std::string text;
  while (true) {
    auto answer = read(SteadyClock::now() + limit);
    if (!answer) return std::move(answer).error().with_context("rendezvous at " + endpoint_.to_string());
    if (auto* reply = std::get_if<rdzv::Reply>(&*answer)) {
      reply->text.insert(0, text);
      return std::move(*reply);
    }
    if (auto* part = std::get_if<rdzv::ReplyPart>(&*answer)) {
      text += part->text;
      if (text.size() > kMaxAnswer) return Error(Errc::malformed, "an answer of more than 1 GiB");
    } else if (on_message) {
      on_message(std::move(*answer));
    }
  }
}

}  // namespace ddprun::launcher
