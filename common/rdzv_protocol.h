#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/enum_words.h"
#include "common/failure_record.h"
#include "common/job_settings.h"
#include "common/rank_slice.h"
#include "common/result.h"
#include "common/types.h"

// The agent protocol: one TCP connection per agent to the rendezvous port. Little endian throughout.
//
// Opening, frozen for all versions
//   client -> server  8 bytes "DDPRRDZV" | u16 version | u8 kind (1 agent, 2 operator)
//   server -> client  8 bytes "DDPRRDZV" | u16 version | u8 accepted (0, 1) | text why (<= 1024 bytes)
//   The first byte 'D' tells agents from c10d store clients, whose first byte is 0 (VALIDATE). An unequal version is
//   answered with accepted = 0 and a sentence that both sides print; then the server closes.
// Frames after that, both directions
//   u32 length of the rest (1 .. kMaxFrame, checked before anything is allocated) | u8 type | payload
//   Inside: text = u32 length + bytes; time and duration = i64 milliseconds; optional = u8 0/1, then the value;
//   list = u32 count (bounded), then the elements. A payload must be used up exactly.
//
// Messages, their types and their payload: rdzv_fields.h, member by member.
// connection = how many connections this node has opened, this one included. What arrives late on an older one than
// the newest that was introduced is not taken for the node's word.
// session_key = random, made by the agent at its start and told to nobody else. A node belongs to the one who spoke for
// it first: who comes with another key is not heard as this node, by Join or Register, and so by nothing that follows
// them. Texts and lists beyond their bounds are cut by the writer and refused by the reader; so is a number out of its
// own. Version rule: any change of what is on the wire is a new version; versions do not mix.
namespace ddprun::rdzv {

inline constexpr std::string_view kMagic = "DDPRRDZV";
inline constexpr std::uint16_t kVersion = 3;
inline constexpr std::size_t kHelloBytes = 11;
inline constexpr std::uint32_t kMaxFlightBytes = 4u << 20;
inline constexpr std::uint32_t kMaxFrame = kMaxFlightBytes + 4096;
inline constexpr std::uint32_t kMaxAgentFrame = 256u << 10;  // every agent message but FlightReply
inline constexpr std::uint32_t kMaxName = 255;
inline constexpr std::uint32_t kMaxSentence = 4096;
inline constexpr std::uint32_t kMaxLines = 20;
inline constexpr std::uint32_t kMaxLine = 1024;
inline constexpr std::uint32_t kMaxErrorFile = 32u << 10;
inline constexpr std::uint32_t kMaxFailures = 16;
inline constexpr std::uint32_t kRosterPage = 1'000;
inline constexpr std::uint32_t kMaxPart = 1u << 20;   // of a text that travels in parts
inline constexpr std::int64_t kMaxCount = 1'000'000;  // of nodes, and of workers on a node
inline constexpr std::int64_t kMaxKeepAliveAttempts = 1'000;
inline constexpr std::uint32_t kMaxSessionKey = 64;

enum class PeerKind : std::uint8_t { agent = 1, operator_tool = 2 };
enum class MemberState : std::uint8_t { waiting = 0, running = 1, finished = 2, resumable = 3, stopping = 4 };
constexpr auto words(MemberState) {  // of the status JSON, of metrics and logs
  return std::to_array<EnumWord<MemberState>>({{MemberState::waiting, "waiting"},
                                               {MemberState::running, "running"},
                                               {MemberState::finished, "finished"},
                                               {MemberState::resumable, "resumable"},
                                               {MemberState::stopping, "stopping"}});
}
enum class DoneResult : std::uint8_t { success = 0, resume_me = 1 };
constexpr auto words(DoneResult) {
  return std::to_array<EnumWord<DoneResult>>({{DoneResult::success, "success"}, {DoneResult::resume_me, "resume me"}});
}
enum class ShutdownCause : std::uint8_t {
  worker_failure = 0,  // root cause inside
  too_few_nodes = 1,   // the round expired
  stopped = 2,         // ddpctl stop
  drained = 3,         // ddpctl drain of this node
  daemon_stops = 4,    // SIGTERM of the daemon: workers run on, the agent reconnects
};
constexpr auto words(ShutdownCause) {
  return std::to_array<EnumWord<ShutdownCause>>({{ShutdownCause::worker_failure, "worker failure"},
                                                 {ShutdownCause::too_few_nodes, "too few nodes"},
                                                 {ShutdownCause::stopped, "stopped"},
                                                 {ShutdownCause::drained, "drained"},
                                                 {ShutdownCause::daemon_stops, "daemon stops"}});
}
// spare: this node will run nothing unless another one is lost, which its user may not have meant.
enum class NoticeKind : std::uint8_t { node_lost = 0, newcomer = 1, spare = 2 };
constexpr auto words(NoticeKind) {
  return std::to_array<EnumWord<NoticeKind>>(
      {{NoticeKind::node_lost, "node lost"}, {NoticeKind::newcomer, "newcomer"}, {NoticeKind::spare, "spare"}});
}

// The head of a frame, for rdzv_fields.h.
struct Frame {
  std::uint8_t type = 0;
  const char* name = "";
};

// What an agent says about itself.
struct NodeInfo {
  RunId run_id;
  NodeId node_id;
  std::string host;
  // Where its worker store can be reached: numeric, without brackets and zone; or a name that means the same host to
  // all nodes (--local-addr, and the endpoint's with the static backend).
  std::string address;
  std::string role = "default";
  std::string topology_key;
  std::int64_t nproc = 1;
  std::optional<std::int64_t> node_rank;
  std::uint16_t worker_store_port = 0;
  JobSettings job;  // must be equal on all nodes of a run id
};

struct Join {
  NodeInfo node;
  std::uint64_t connection = 0;
  Round last_round;  // 0: none yet
  std::string session_key;
};

using Assignment = RankSlice;

struct Register {
  NodeInfo node;
  std::uint64_t connection = 0;
  RankSlice slice;
  MemberState state = MemberState::running;
  std::string session_key;
};

struct Heartbeat {
  std::uint64_t sequence = 0;
  bool want_reason = false;
};

struct Leave {
  Round round;
  std::string reason;
};

struct Failure {
  std::chrono::milliseconds age{0};  // how long ago it was, by the agent's clock
  bool permanent = false;            // a retry cannot mend it
  bool quick = false;                // within crash_loop_window of its workers' start
  FailureRecord record;
};

struct Done {
  Round round;
  DoneResult result = DoneResult::success;
};

struct FlightReply {
  std::uint64_t id = 0;
  std::string bytes;
};

struct HeartbeatAck {
  std::uint64_t sequence = 0;
  std::string reason;
};

struct Restart {
  Round round;  // the one that ends
  std::int64_t restart_count = 0;
  std::string reason;
};

struct Finished {
  DoneResult result = DoneResult::success;
};

struct Shutdown {
  ShutdownCause cause = ShutdownCause::worker_failure;
  std::string reason;
  std::vector<FailureRecord> failures;  // in order of time
  std::optional<std::uint32_t> root;    // index into failures
};

struct Refused {
  bool retry = false;  // may be different in a second
  std::string reason;
};

struct FlightRequest {
  std::uint64_t id = 0;
  std::uint32_t max_bytes = kMaxFlightBytes;
};

struct Notice {
  NoticeKind kind = NoticeKind::node_lost;
  std::string text;
};

struct Registered {
  Round round;
};

struct StatusRequest {
  std::string run_id;
};

struct DrainRequest {
  std::string run_id;
  std::string node;
  std::string token;
};

struct StopRequest {
  std::string run_id;
  std::string token;
};

struct FlightQuery {
  std::string run_id;
};

struct RosterRequest {
  std::string run_id;
};

struct Reply {
  bool ok = true;
  std::string text;
};

struct ReplyPart {
  std::string text;
};

struct RosterEntry {
  std::string node_id;
  std::string host;
  std::string address;
  std::int64_t group_rank = -1;  // -1: waiting, as first_rank
  std::int64_t first_rank = -1;
  std::int64_t nproc = 0;
  MemberState state = MemberState::waiting;
};

struct Roster {
  std::vector<RosterEntry> entries;
};

struct FlightPart {
  std::string host;
  std::int64_t group_rank = -1;
  std::string bytes;
};

using AgentMessage = std::variant<Join, Register, Heartbeat, Leave, Failure, Done, FlightReply>;
using ServerMessage = std::variant<Assignment, HeartbeatAck, Restart, Finished, Shutdown, Refused, FlightRequest,
                                   Notice, Registered, Reply, FlightPart, ReplyPart, Roster>;
using OperatorMessage = std::variant<StatusRequest, DrainRequest, StopRequest, FlightQuery, RosterRequest>;

struct Hello {
  std::uint16_t version = kVersion;
  PeerKind kind = PeerKind::agent;
};

struct HelloReply {
  std::uint16_t version = kVersion;
  bool accepted = true;
  std::string why;
};

std::string encode(const Hello& hello);
std::string encode(const HelloReply& reply);
// `bytes` is exactly kHelloBytes long. Errors: malformed (not our magic, unknown kind).
Result<Hello> decode_hello(std::string_view bytes);
// The reply's fixed part is 15 bytes: magic, version, accepted, length of `why`; then `why`.
inline constexpr std::size_t kHelloReplyFixedBytes = 15;
inline constexpr std::uint32_t kMaxHelloWhy = 1024;
struct HelloReplyHead {
  std::uint16_t version = 0;
  bool accepted = false;
  std::uint32_t why_bytes = 0;
};
Result<HelloReplyHead> decode_hello_reply_head(std::string_view bytes);

// "this rendezvous speaks version 1 of the agent protocol, the agent version 2: install the same ddprun on every node"
std::string version_mismatch(std::uint16_t server, std::uint16_t client);

// A whole frame, length included. Texts beyond their bounds are cut.
std::string encode(const AgentMessage& message);
std::string encode(const ServerMessage& message);
std::string encode(const OperatorMessage& message);

// `frame` is type + payload, without the length. Errors: malformed naming the message and what is out of bounds.
Result<AgentMessage> decode_agent(std::string_view frame);
Result<ServerMessage> decode_server(std::string_view frame);
Result<OperatorMessage> decode_operator(std::string_view frame);

// "rank 3 on hostB ended with exit code 7", "... with signal 9 (SIGKILL)"
std::string describe(const FailureRecord& failure);

}  // namespace ddprun::rdzv
