// Bytes -> messages. Every length and number is checked against its bound, and the first that is out of it is named.
#include <utility>

#include "common/rdzv_protocol.h"
#include "common/rdzv_protocol_types.h"

namespace ddprun::rdzv {
namespace {

constexpr std::int64_t kMaxNumber = std::int64_t{1} << 53;
constexpr std::int64_t kMaxMs = kMaxDuration.count();

using Ms = std::chrono::milliseconds;

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

}  // namespace ddprun::rdzv
