#include "common/rdzv_protocol.h"

#include <string.h>  // NOLINT: sigabbrev_np

#include <algorithm>
#include <array>

#include "common/check.h"

namespace ddprun::rdzv {
namespace {

enum Type : std::uint8_t {
  kJoin = 1,
  kRegister = 2,
  kHeartbeat = 3,
  kLeave = 4,
  kFailure = 5,
  kDone = 6,
  kFlightReply = 8,
  kAssignment = 64,
  kHeartbeatAck = 65,
  kRestart = 66,
  kFinished = 67,
  kShutdown = 68,
  kRefused = 69,
  kFlightRequest = 71,
  kNotice = 72,
  kRegistered = 73,
  kStatusRequest = 128,
  kDrainRequest = 129,
  kStopRequest = 130,
  kFlightQuery = 131,
  kRosterRequest = 132,
  kReply = 160,
  kFlightPart = 161,
  kReplyPart = 162,
  kRoster = 163,
};

constexpr std::int64_t kMaxNumber = std::int64_t{1} << 53;
constexpr std::int64_t kMaxMs = kMaxDuration.count();
constexpr std::uint32_t kNoRoot = 0xffffffff;

// A full page fits into a frame: three names and what else an entry has.
static_assert(kRosterPage * (3 * (4 + kMaxName) + 3 * 8 + 1) + 64 <= kMaxFrame);
static_assert(kMaxPart + 64 <= kMaxFrame);

using Ms = std::chrono::milliseconds;

// --- writing ------------------------------------------------------------------------------------------------------

void put_text(WireWriter& w, std::string_view text, std::uint32_t max) { w.text(text.substr(0, max)); }

void put_node(WireWriter& w, const NodeInfo& node) {
  for (const std::string* text :
       {&node.run_id.value, &node.node_id.value, &node.host, &node.address, &node.role, &node.topology_key}) {
    put_text(w, *text, kMaxName);
  }
  w.i64(node.nnodes_min);
  w.i64(node.nnodes_max);
  w.i64(node.nproc);
  w.u8(node.node_rank ? 1 : 0);
  if (node.node_rank) w.i64(*node.node_rank);
  w.u16(node.worker_store_port);
  w.u8(static_cast<std::uint8_t>(node.backend));
  w.i64(node.max_restarts);
  for (const Ms time : {node.join_timeout, node.last_call_timeout, node.close_timeout, node.keep_alive_interval}) {
    w.i64(time.count());
  }
  w.i64(node.keep_alive_attempts);
  w.i64(node.crash_loop_limit);
  w.i64(node.crash_loop_window.count());
}

void put_slice(WireWriter& w, const Assignment& a) {
  w.i64(a.round.value);
  w.i64(a.group_rank.value);
  w.i64(a.group_world_size);
  w.i64(a.first_rank.value);
  w.i64(a.world_size);
  w.i64(a.first_role_rank);
  w.i64(a.role_world_size);
  w.i64(a.restart_count);
}

void put_texts(WireWriter& w, const std::vector<std::string>& texts, std::uint32_t max_count, std::uint32_t max_bytes) {
  // The last ones are kept: of a worker's last lines, the very last say most.
  const std::size_t skip = texts.size() > max_count ? texts.size() - max_count : 0;
  w.u32(static_cast<std::uint32_t>(texts.size() - skip));
  for (std::size_t i = skip; i < texts.size(); ++i) put_text(w, texts[i], max_bytes);
}

void put_failure(WireWriter& w, const FailureRecord& f) {
  for (const std::int64_t n : {f.rank.value, f.local_rank.value, f.group_rank.value, f.round.value, f.restart_count}) {
    w.i64(n);
  }
  put_text(w, f.host, kMaxName);
  w.i64(f.pid);
  w.i64(f.exit_code);
  w.i64(f.signal);
  w.i64(f.unix_time.count());
  w.u8(f.out_of_memory ? 1 : 0);
  w.u8(f.stopped_by_us ? 1 : 0);
  put_texts(w, f.last_lines, kMaxLines, kMaxLine);
  put_text(w, f.error_file_json, kMaxErrorFile);
  put_texts(w, f.log_paths, kMaxLines, kMaxLine);
  put_text(w, f.message, kMaxSentence);
}

struct Writer {
  WireWriter& w;

  void operator()(const Join& m) {
    w.u8(kJoin);
    put_node(w, m.node);
    w.u64(m.connection);
    w.i64(m.last_round.value);
  }
  void operator()(const Register& m) {
    w.u8(kRegister);
    put_node(w, m.node);
    w.u64(m.connection);
    put_slice(w, m.slice);
    w.u8(static_cast<std::uint8_t>(m.state));
  }
  void operator()(const Heartbeat& m) {
    w.u8(kHeartbeat);
    w.u64(m.sequence);
    w.u8(m.want_reason ? 1 : 0);
  }
  void operator()(const Leave& m) {
    w.u8(kLeave);
    w.i64(m.round.value);
    w.u8(static_cast<std::uint8_t>(m.why));
    put_text(w, m.reason, kMaxSentence);
  }
  void operator()(const Failure& m) {
    w.u8(kFailure);
    w.i64(m.age.count());
    w.u8(m.permanent ? 1 : 0);
    w.u8(m.quick ? 1 : 0);
    put_failure(w, m.record);
  }
  void operator()(const Done& m) {
    w.u8(kDone);
    w.i64(m.round.value);
    w.u8(static_cast<std::uint8_t>(m.result));
  }
  void operator()(const FlightReply& m) {
    w.u8(kFlightReply);
    w.u64(m.id);
    put_text(w, m.bytes, kMaxFlightBytes);
  }
  void operator()(const Assignment& m) {
    w.u8(kAssignment);
    put_slice(w, m);
    put_text(w, m.master.host, kMaxName);
    w.u16(m.master.port);
  }
  void operator()(const HeartbeatAck& m) {
    w.u8(kHeartbeatAck);
    w.u64(m.sequence);
    put_text(w, m.reason, kMaxSentence);
  }
  void operator()(const Restart& m) {
    w.u8(kRestart);
    w.i64(m.round.value);
    w.i64(m.restart_count);
    put_text(w, m.reason, kMaxSentence);
  }
  void operator()(const Finished& m) {
    w.u8(kFinished);
    w.u8(static_cast<std::uint8_t>(m.result));
  }
  void operator()(const Shutdown& m) {
    w.u8(kShutdown);
    w.u8(static_cast<std::uint8_t>(m.cause));
    put_text(w, m.reason, kMaxSentence);
    // The root cause always travels: it stands first by time, and the list is cut at its end.
    const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(m.failures.size(), kMaxFailures));
    const bool root_cut = m.root && *m.root >= count;
    w.u32(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      put_failure(w, root_cut && i + 1 == count ? m.failures.at(*m.root) : m.failures[i]);
    }
    w.u32(!m.root ? kNoRoot : root_cut ? count - 1 : *m.root);
  }
  void operator()(const Refused& m) {
    w.u8(kRefused);
    w.u8(m.retry ? 1 : 0);
    put_text(w, m.reason, kMaxSentence);
  }
  void operator()(const FlightRequest& m) {
    w.u8(kFlightRequest);
    w.u64(m.id);
    w.u32(m.max_bytes);
  }
  void operator()(const Notice& m) {
    w.u8(kNotice);
    w.u8(static_cast<std::uint8_t>(m.kind));
    put_text(w, m.text, kMaxSentence);
  }
  void operator()(const Registered& m) {
    w.u8(kRegistered);
    w.i64(m.round.value);
  }
  void operator()(const StatusRequest& m) {
    w.u8(kStatusRequest);
    put_text(w, m.run_id, kMaxName);
  }
  void operator()(const DrainRequest& m) {
    w.u8(kDrainRequest);
    put_text(w, m.run_id, kMaxName);
    put_text(w, m.node, kMaxName);
    put_text(w, m.token, kMaxSentence);
  }
  void operator()(const StopRequest& m) {
    w.u8(kStopRequest);
    put_text(w, m.run_id, kMaxName);
    put_text(w, m.token, kMaxSentence);
  }
  void operator()(const FlightQuery& m) {
    w.u8(kFlightQuery);
    put_text(w, m.run_id, kMaxName);
  }
  void operator()(const Reply& m) {
    w.u8(kReply);
    w.u8(m.ok ? 1 : 0);
    put_text(w, m.text, kMaxPart);
  }
  void operator()(const ReplyPart& m) {
    w.u8(kReplyPart);
    put_text(w, m.text, kMaxPart);
  }
  void operator()(const RosterRequest& m) {
    w.u8(kRosterRequest);
    put_text(w, m.run_id, kMaxName);
  }
  void operator()(const Roster& m) {
    w.u8(kRoster);
    const std::size_t count = std::min<std::size_t>(m.entries.size(), kRosterPage);
    w.u32(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      const RosterEntry& e = m.entries[i];
      put_text(w, e.node_id, kMaxName);
      put_text(w, e.host, kMaxName);
      put_text(w, e.address, kMaxName);
      w.i64(e.group_rank);
      w.i64(e.first_rank);
      w.i64(e.nproc);
      w.u8(static_cast<std::uint8_t>(e.state));
    }
  }
  void operator()(const FlightPart& m) {
    w.u8(kFlightPart);
    put_text(w, m.host, kMaxName);
    w.i64(m.group_rank);
    put_text(w, m.bytes, kMaxFlightBytes);
  }
};

template <typename Message>
std::string encode_frame(const Message& message) {
  WireWriter w;
  w.u32(0);
  Writer writer{w};
  std::visit(writer, message);
  w.patch_u32(0, static_cast<std::uint32_t>(w.bytes().size() - 4));
  return std::move(w).take();
}

// --- reading ------------------------------------------------------------------------------------------------------

// Remembers the first thing that is out of bounds.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : r_(bytes) {}

  std::int64_t number(const char* what, std::int64_t min, std::int64_t max) {
    const std::int64_t value = r_.i64();
    if (!r_.failed() && (value < min || value > max)) {
      complain(std::string(what) + " " + std::to_string(value) + " is not in " + std::to_string(min) + ".." +
               std::to_string(max));
    }
    return value;
  }
  Ms duration(const char* what) { return Ms(number(what, 0, kMaxMs)); }
  std::string text(const char* what, std::uint32_t max) {
    const auto piece = r_.text(max);
    if (r_.failed()) complain(std::string(what) + " is cut short or longer than " + std::to_string(max) + " bytes");
    return std::string(piece);
  }
  template <typename Enum>
  Enum choice(const char* what, Enum last) {
    const std::uint8_t value = r_.u8();
    if (value > static_cast<std::uint8_t>(last)) complain(std::string("unknown ") + what + " " + std::to_string(value));
    return static_cast<Enum>(value);
  }
  bool flag(const char* what) { return choice<std::uint8_t>(what, 1) != 0; }
  std::uint32_t count(const char* what, std::uint32_t max) {
    const std::uint32_t n = r_.u32();
    // Each element takes at least one byte, so a count beyond what is there is a lie.
    if (n > max || n > r_.remaining()) {
      complain(std::string(what) + ": " + std::to_string(n) + " elements");
      return 0;
    }
    return n;
  }
  std::uint16_t u16() { return r_.u16(); }
  std::uint32_t u32() { return r_.u32(); }
  std::uint64_t u64() { return r_.u64(); }
  std::uint8_t u8() { return r_.u8(); }

  void complain(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
    r_.fail();
  }
  std::optional<Error> problem(const char* message) const {
    if (r_.finished()) return std::nullopt;
    std::string why = problem_;
    if (why.empty()) why = r_.failed() ? "cut short" : std::to_string(r_.remaining()) + " bytes too many";
    return Error(Errc::malformed, std::string(message) + " message: " + why);
  }

 private:
  WireReader r_;
  std::string problem_;
};

NodeInfo get_node(Reader& r) {
  NodeInfo node;
  node.run_id = RunId(r.text("run_id", kMaxName));
  node.node_id = NodeId(r.text("node_id", kMaxName));
  node.host = r.text("host", kMaxName);
  node.address = r.text("address", kMaxName);
  node.role = r.text("role", kMaxName);
  node.topology_key = r.text("topology_key", kMaxName);
  node.nnodes_min = r.number("nnodes_min", 1, kMaxCount);
  node.nnodes_max = r.number("nnodes_max", node.nnodes_min, kMaxCount);
  node.nproc = r.number("nproc", 1, kMaxCount);
  if (r.flag("optional node_rank")) node.node_rank = r.number("node_rank", 0, kMaxCount);
  node.worker_store_port = r.u16();
  node.backend = r.choice("backend", Backend::static_ranks);
  node.max_restarts = r.number("max_restarts", 0, kMaxNumber);
  node.join_timeout = r.duration("join_timeout");
  node.last_call_timeout = r.duration("last_call_timeout");
  node.close_timeout = r.duration("close_timeout");
  node.keep_alive_interval = Ms(r.number("keep_alive_interval", 1, kMaxMs));
  node.keep_alive_attempts = r.number("keep_alive_attempts", 1, kMaxKeepAliveAttempts);
  node.crash_loop_limit = r.number("crash_loop_limit", 0, kMaxNumber);
  node.crash_loop_window = r.duration("crash_loop_window");
  if (node.node_id.value.empty()) r.complain("node_id is empty");
  if (node.run_id.value.empty()) r.complain("run_id is empty");
  return node;
}

Assignment get_slice(Reader& r) {
  Assignment a;
  a.round = Round(r.number("round", 0, kMaxNumber));
  a.group_rank = GroupRank(r.number("group_rank", 0, kMaxNumber));
  a.group_world_size = r.number("group_world_size", 1, kMaxCount);
  a.first_rank = Rank(r.number("first_rank", 0, kMaxNumber));
  a.world_size = r.number("world_size", 1, kMaxNumber);
  a.first_role_rank = r.number("first_role_rank", 0, kMaxNumber);
  a.role_world_size = r.number("role_world_size", 1, kMaxNumber);
  a.restart_count = r.number("restart_count", 0, kMaxNumber);
  return a;
}

std::vector<std::string> get_texts(Reader& r, const char* what) {
  std::vector<std::string> texts(r.count(what, kMaxLines));
  for (std::string& text : texts) text = r.text(what, kMaxLine);
  return texts;
}

FailureRecord get_failure(Reader& r) {
  FailureRecord f;
  f.rank = Rank(r.number("rank", 0, kMaxNumber));
  f.local_rank = LocalRank(r.number("local_rank", 0, kMaxNumber));
  f.group_rank = GroupRank(r.number("group_rank", 0, kMaxNumber));
  f.round = Round(r.number("round", 0, kMaxNumber));
  f.restart_count = r.number("restart_count", 0, kMaxNumber);
  f.host = r.text("host", kMaxName);
  f.pid = r.number("pid", 0, kMaxNumber);
  f.exit_code = static_cast<int>(r.number("exit_code", 0, 255));
  f.signal = static_cast<int>(r.number("signal", 0, 64));
  f.unix_time = Ms(r.number("unix_time", 0, kMaxNumber));
  f.out_of_memory = r.flag("out_of_memory");
  f.stopped_by_us = r.flag("stopped_by_us");
  f.last_lines = get_texts(r, "last_lines");
  f.error_file_json = r.text("error_file_json", kMaxErrorFile);
  f.log_paths = get_texts(r, "log_paths");
  f.message = r.text("message", kMaxSentence);
  return f;
}

// Wraps up: the message if all is in order, else what is wrong with it.
template <typename Variant, typename Message>
Result<Variant> finish(const Reader& r, const char* name, Message message) {
  if (auto problem = r.problem(name)) return std::move(*problem);
  return Variant(std::move(message));
}

Error unknown_type(std::uint8_t type, const char* from) {
  return Error(Errc::malformed, "message of unknown type " + std::to_string(type) + " from " + from);
}

}  // namespace

std::string encode(const Hello& hello) {
  WireWriter w;
  w.raw(kMagic);
  w.u16(hello.version);
  w.u8(static_cast<std::uint8_t>(hello.kind));
  return std::move(w).take();
}

std::string encode(const HelloReply& reply) {
  WireWriter w;
  w.raw(kMagic);
  w.u16(reply.version);
  w.u8(reply.accepted ? 1 : 0);
  put_text(w, reply.why, kMaxHelloWhy);
  return std::move(w).take();
}

Result<Hello> decode_hello(std::string_view bytes) {
  WireReader r(bytes);
  if (r.raw(kMagic.size()) != kMagic) return Error(Errc::malformed, "the opening is not that of a ddprun agent");
  Hello hello;
  hello.version = r.u16();
  const std::uint8_t kind = r.u8();
  if (!r.finished()) return Error(Errc::malformed, "the opening is cut short");
  // Of other versions only magic and version are known; the caller refuses them before it looks at the kind.
  if (hello.version == kVersion && kind != 1 && kind != 2) {
    return Error(Errc::malformed, "unknown kind of peer " + std::to_string(kind));
  }
  hello.kind = static_cast<PeerKind>(kind);
  return hello;
}

Result<HelloReplyHead> decode_hello_reply_head(std::string_view bytes) {
  WireReader r(bytes);
  if (r.raw(kMagic.size()) != kMagic) return Error(Errc::malformed, "it does not speak the ddprun agent protocol");
  HelloReplyHead head;
  head.version = r.u16();
  head.accepted = r.u8() == 1;
  head.why_bytes = r.u32();
  if (!r.finished() || head.why_bytes > kMaxHelloWhy) return Error(Errc::malformed, "its opening reply is malformed");
  return head;
}

std::string version_mismatch(std::uint16_t server, std::uint16_t client) {
  return "the rendezvous speaks version " + std::to_string(server) + " of the agent protocol, the agent version " +
         std::to_string(client) + ": install the same ddprun on every node";
}

std::string encode(const AgentMessage& message) { return encode_frame(message); }
std::string encode(const ServerMessage& message) { return encode_frame(message); }
std::string encode(const OperatorMessage& message) { return encode_frame(message); }

Result<AgentMessage> decode_agent(std::string_view frame) {
  Reader r(frame);
  switch (const std::uint8_t type = r.u8()) {
    case kJoin: {
      Join m;
      m.node = get_node(r);
      m.connection = r.u64();
      m.last_round = Round(r.number("last_round", 0, kMaxNumber));
      return finish<AgentMessage>(r, "Join", std::move(m));
    }
    case kRegister: {
      Register m;
      m.node = get_node(r);
      m.connection = r.u64();
      m.slice = get_slice(r);
      m.state = r.choice("state", MemberState::stopping);
      return finish<AgentMessage>(r, "Register", std::move(m));
    }
    case kHeartbeat: {
      Heartbeat m;
      m.sequence = r.u64();
      m.want_reason = r.flag("want_reason");
      return finish<AgentMessage>(r, "Heartbeat", m);
    }
    case kLeave: {
      Leave m;
      m.round = Round(r.number("round", 0, kMaxNumber));
      m.why = r.choice("why", LeaveWhy::gave_up);
      m.reason = r.text("reason", kMaxSentence);
      return finish<AgentMessage>(r, "Leave", std::move(m));
    }
    case kFailure: {
      Failure m;
      m.age = r.duration("age");
      m.permanent = r.flag("permanent");
      m.quick = r.flag("quick");
      m.record = get_failure(r);
      return finish<AgentMessage>(r, "Failure", std::move(m));
    }
    case kDone: {
      Done m;
      m.round = Round(r.number("round", 0, kMaxNumber));
      m.result = r.choice("result", DoneResult::resume_me);
      return finish<AgentMessage>(r, "Done", m);
    }
    case kFlightReply: {
      FlightReply m;
      m.id = r.u64();
      m.bytes = r.text("bytes", kMaxFlightBytes);
      return finish<AgentMessage>(r, "FlightReply", std::move(m));
    }
    default:
      return unknown_type(type, "an agent");
  }
}

Result<ServerMessage> decode_server(std::string_view frame) {
  Reader r(frame);
  switch (const std::uint8_t type = r.u8()) {
    case kAssignment: {
      Assignment m = get_slice(r);
      m.master.host = r.text("master_host", kMaxName);
      m.master.port = r.u16();
      return finish<ServerMessage>(r, "Assignment", std::move(m));
    }
    case kHeartbeatAck: {
      HeartbeatAck m;
      m.sequence = r.u64();
      m.reason = r.text("reason", kMaxSentence);
      return finish<ServerMessage>(r, "HeartbeatAck", std::move(m));
    }
    case kRestart: {
      Restart m;
      m.round = Round(r.number("round", 0, kMaxNumber));
      m.restart_count = r.number("restart_count", 0, kMaxNumber);
      m.reason = r.text("reason", kMaxSentence);
      return finish<ServerMessage>(r, "Restart", std::move(m));
    }
    case kFinished: {
      Finished m;
      m.result = r.choice("result", DoneResult::resume_me);
      return finish<ServerMessage>(r, "Finished", m);
    }
    case kShutdown: {
      Shutdown m;
      m.cause = r.choice("cause", ShutdownCause::daemon_stops);
      m.reason = r.text("reason", kMaxSentence);
      m.failures.resize(r.count("failures", kMaxFailures));
      for (FailureRecord& failure : m.failures) failure = get_failure(r);
      const std::uint32_t root = r.u32();
      if (root != kNoRoot) {
        if (root >= m.failures.size()) r.complain("root cause " + std::to_string(root) + " is not in the list");
        m.root = root;
      }
      return finish<ServerMessage>(r, "Shutdown", std::move(m));
    }
    case kRefused: {
      Refused m;
      m.retry = r.flag("retry");
      m.reason = r.text("reason", kMaxSentence);
      return finish<ServerMessage>(r, "Refused", std::move(m));
    }
    case kFlightRequest: {
      FlightRequest m;
      m.id = r.u64();
      m.max_bytes = r.u32();
      if (m.max_bytes > kMaxFlightBytes) r.complain("max_bytes " + std::to_string(m.max_bytes));
      return finish<ServerMessage>(r, "FlightRequest", m);
    }
    case kNotice: {
      Notice m;
      m.kind = r.choice("kind", NoticeKind::spare);
      m.text = r.text("text", kMaxSentence);
      return finish<ServerMessage>(r, "Notice", std::move(m));
    }
    case kRegistered: {
      Registered m;
      m.round = Round(r.number("round", 0, kMaxNumber));
      return finish<ServerMessage>(r, "Registered", m);
    }
    case kReply: {
      Reply m;
      m.ok = r.flag("ok");
      m.text = r.text("text", kMaxPart);
      return finish<ServerMessage>(r, "Reply", std::move(m));
    }
    case kReplyPart: {
      ReplyPart m;
      m.text = r.text("text", kMaxPart);
      return finish<ServerMessage>(r, "ReplyPart", std::move(m));
    }
    case kRoster: {
      Roster m;
      m.entries.resize(r.count("roster", kRosterPage));
      for (RosterEntry& e : m.entries) {
        e.node_id = r.text("node_id", kMaxName);
        e.host = r.text("host", kMaxName);
        e.address = r.text("address", kMaxName);
        e.group_rank = r.number("group_rank", -1, kMaxNumber);
        e.first_rank = r.number("first_rank", -1, kMaxNumber);
        e.nproc = r.number("nproc", 0, kMaxCount);
        e.state = r.choice("state", MemberState::stopping);
      }
      return finish<ServerMessage>(r, "Roster", std::move(m));
    }
    case kFlightPart: {
      FlightPart m;
      m.host = r.text("host", kMaxName);
      m.group_rank = r.number("group_rank", -1, kMaxNumber);
      m.bytes = r.text("bytes", kMaxFlightBytes);
      return finish<ServerMessage>(r, "FlightPart", std::move(m));
    }
    default:
      return unknown_type(type, "the rendezvous");
  }
}

Result<OperatorMessage> decode_operator(std::string_view frame) {
  Reader r(frame);
  switch (const std::uint8_t type = r.u8()) {
    case kStatusRequest: {
      StatusRequest m;
      m.run_id = r.text("run_id", kMaxName);
      return finish<OperatorMessage>(r, "StatusRequest", std::move(m));
    }
    case kDrainRequest: {
      DrainRequest m;
      m.run_id = r.text("run_id", kMaxName);
      m.node = r.text("node", kMaxName);
      m.token = r.text("token", kMaxSentence);
      return finish<OperatorMessage>(r, "DrainRequest", std::move(m));
    }
    case kStopRequest: {
      StopRequest m;
      m.run_id = r.text("run_id", kMaxName);
      m.token = r.text("token", kMaxSentence);
      return finish<OperatorMessage>(r, "StopRequest", std::move(m));
    }
    case kFlightQuery: {
      FlightQuery m;
      m.run_id = r.text("run_id", kMaxName);
      return finish<OperatorMessage>(r, "FlightQuery", std::move(m));
    }
    case kRosterRequest: {
      RosterRequest m;
      m.run_id = r.text("run_id", kMaxName);
      return finish<OperatorMessage>(r, "RosterRequest", std::move(m));
    }
    default:
      return unknown_type(type, "an operator");
  }
}

std::string_view to_string(MemberState state) {
  constexpr std::array<std::string_view, 5> kNames = {"waiting", "running", "finished", "resumable", "stopping"};
  return kNames.at(static_cast<std::size_t>(state));
}

std::string describe(const FailureRecord& failure) {
  if (!failure.message.empty()) return failure.message;
  std::string text = "rank " + std::to_string(failure.rank.value) + " on " + failure.host + " ended with ";
  if (failure.signal == 0) return text + "exit code " + std::to_string(failure.exit_code);
  text += "signal " + std::to_string(failure.signal);
  if (const char* name = ::sigabbrev_np(failure.signal)) text += std::string(" (SIG") + name + ")";
  return text;
}

}  // namespace ddprun::rdzv
