#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/failure_record.h"
#include "common/result.h"
#include "common/types.h"
#include "common/wire.h"

// clang-format off
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
//   type  name             who           payload
//      1  Join             agent         node | u64 connection | i64 last_round
//      2  Register         agent         node | u64 connection | i64 round | i64 group_rank, group_world_size,
//                                        first_rank, world_size, first_role_rank, role_world_size, restart_count |
//                                        u8 state
//                                        (after a broken connection: "I am member k of round R")
//      3  Heartbeat        agent         u64 sequence | u8 want_reason. Every keep_alive_interval
//      4  Leave            agent         i64 round | u8 why | text reason. Sent before the workers are signalled
//      5  Failure          agent         i64 age_ms | u8 permanent, quick | failure
//      6  Done             agent         i64 round | u8 result (0 success, 1 resume_me)
//      8  FlightReply      agent         u64 id | text bytes (<= kMaxFlightBytes)
//     64  Assignment       server        i64 round, group_rank, group_world_size, first_rank, world_size,
//                                        first_role_rank, role_world_size, restart_count | text master_host |
//                                        u16 master_port
//     65  HeartbeatAck     server        u64 sequence | text reason ("" unless it was wanted and there is one)
//     66  Restart          server        i64 round | i64 restart_count | text reason: stop your workers, then Join
//     67  Finished         server        u8 result | the job ended well: exit
//     68  Shutdown         server        u8 cause | text reason | list of failures (<= kMaxFailures) | u32 root (index,
//                                        or 0xffffffff)
//     69  Refused          server        u8 retry | text reason
//     71  FlightRequest    server        u64 id | u32 max_bytes
//     72  Notice           server        u8 kind | text. News that changes nothing for the reader
//     73  Registered       server        i64 round
//    128  StatusRequest    operator      text run_id ("" = all)
//    129  DrainRequest     operator      text run_id | text node (id, host, address, group rank) | text token
//    130  StopRequest      operator      text run_id | text token
//    131  FlightQuery      operator      text run_id
//    132  RosterRequest    operator      text run_id
//    160  Reply            server        u8 ok | text (<= kMaxPart). The last word on each request
//    161  FlightPart       server        text host | i64 group_rank | text bytes. One per node, then Reply
//    162  ReplyPart        server        text (<= kMaxPart). Goes before the Reply's text (StatusRequest: JSON)
//    163  Roster           server        list (<= kRosterPage): text node_id, host, address | i64 group_rank,
//                                        first_rank, nproc | u8 state. Pages in the order of ranks, then Reply
//
//   connection = how many connections this node has opened, this one included. What arrives late on an older one than
//             the newest that was introduced is not taken for the node's word.
//   node    = text run_id, node_id, host, address, role, topology_key | i64 nnodes_min, nnodes_max, nproc |
//             optional i64 node_rank | u16 worker_store_port | u8 backend | i64 max_restarts |
//             i64 join_ms, last_call_ms, close_ms, keep_alive_ms | i64 keep_alive_attempts |
//             i64 crash_loop_limit, crash_loop_window_ms
//   failure = i64 rank, local_rank, group_rank, round, restart_count | text host | i64 pid, exit_code, signal,
//             unix_ms | u8 out_of_memory, stopped_by_us | list of text last_lines | text error_file_json |
//             list of text log_paths | text message
//
// Bounds: names 255 bytes, sentences 4096, lists and texts of a failure as in the constants below (the writer cuts, the
// reader refuses), nproc and nnodes 1 .. 1,000,000, keep_alive_attempts 1 .. 1000, durations
// 0 .. 10 years, ranks and rounds 0 .. 2^53.
// Version rule: any change of this table is a new version; versions do not mix.
// clang-format on
namespace ddprun::rdzv {

inline constexpr std::string_view kMagic = "DDPRRDZV";
inline constexpr std::uint16_t kVersion = 2;
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
inline constexpr std::chrono::milliseconds kMaxDuration{315'360'000'000};  // ten years

enum class PeerKind : std::uint8_t { agent = 1, operator_tool = 2 };
enum class Backend : std::uint8_t { c10d = 0, static_ranks = 1 };
enum class MemberState : std::uint8_t { waiting = 0, running = 1, finished = 2, resumable = 3, stopping = 4 };
enum class LeaveWhy : std::uint8_t { signalled = 0, failed_to_start = 1, drained = 2, gave_up = 3 };
enum class DoneResult : std::uint8_t { success = 0, resume_me = 1 };
enum class ShutdownCause : std::uint8_t {
  worker_failure = 0,  // root cause inside
  too_few_nodes = 1,   // the round expired
  stopped = 2,         // ddpctl stop
  drained = 3,         // ddpctl drain of this node
  daemon_stops = 4,    // SIGTERM of the daemon: workers run on, the agent reconnects
};
// spare: this node will run nothing unless another one is lost, which its user may not have meant.
enum class NoticeKind : std::uint8_t { node_lost = 0, newcomer = 1, spare = 2 };

// What an agent says about itself. Job-wide values must be equal on all nodes of a run id.
struct NodeInfo {
  RunId run_id;
  NodeId node_id;
  std::string host;
  // Where its worker store can be reached: numeric, without brackets and zone; or a name that means the same host to
  // all nodes (--local-addr, and the endpoint's with the static backend).
  std::string address;
  std::string role = "default";
  std::string topology_key;
  std::int64_t nnodes_min = 1;  // job-wide
  std::int64_t nnodes_max = 1;  // job-wide
  std::int64_t nproc = 1;
  std::optional<std::int64_t> node_rank;
  std::uint16_t worker_store_port = 0;
  Backend backend = Backend::c10d;  // job-wide, and all below
  std::int64_t max_restarts = 0;
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call_timeout{30'000};
  std::chrono::milliseconds close_timeout{30'000};
  std::chrono::milliseconds keep_alive_interval{5'000};
  std::int64_t keep_alive_attempts = 3;
  std::int64_t crash_loop_limit = 0;
  std::chrono::milliseconds crash_loop_window{5'000};

  // Bounded as every duration here is: in nanoseconds the bare product would not fit.
  std::chrono::milliseconds lease() const { return std::min(keep_alive_interval * keep_alive_attempts, kMaxDuration); }
};

struct Join {
  NodeInfo node;
  std::uint64_t connection = 0;
  Round last_round;  // 0: none yet
};

struct Assignment {
  Round round;
  GroupRank group_rank;
  std::int64_t group_world_size = 1;
  Rank first_rank;
  std::int64_t world_size = 1;
  std::int64_t first_role_rank = 0;
  std::int64_t role_world_size = 1;
  std::int64_t restart_count = 0;
  Endpoint master;
};

struct Register {
  NodeInfo node;
  std::uint64_t connection = 0;
  Assignment slice;  // without master
  MemberState state = MemberState::running;
};

struct Heartbeat {
  std::uint64_t sequence = 0;
  bool want_reason = false;
};

struct Leave {
  Round round;
  LeaveWhy why = LeaveWhy::signalled;
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

// The words of the status JSON and of logs.
std::string_view to_string(MemberState state);
// "rank 3 on hostB ended with exit code 7", "... with signal 9 (SIGKILL)"
std::string describe(const FailureRecord& failure);

}  // namespace ddprun::rdzv
