#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>

#include "common/failure_record.h"
#include "common/fields.h"
#include "common/job_settings.h"
#include "common/rank_slice.h"
#include "common/rdzv_protocol.h"

// What travels: the type of each message and its members in the order of the wire, each once. A bool or an enumeration
// is a u8, a port a u16, a count of a list and what is a std::uint32_t a u32, any other number an i64, but ids and
// sequence numbers (std::uint64_t) a u64; an optional is u8 0 or 1, then the value; a part is its own members.
// For rdzv_codec.cc and job_settings.cc.
namespace ddprun {

inline constexpr std::int64_t kMaxNumber = std::int64_t{1} << 53;
inline constexpr Bounds kNumber{0, kMaxNumber};
inline constexpr Bounds kNumberOrNone{-1, kMaxNumber};
inline constexpr Bounds kSize{1, kMaxNumber};
inline constexpr Bounds kCount{1, rdzv::kMaxCount};
inline constexpr Bounds kDuration{0, kMaxDuration.count()};
inline constexpr Bounds kName{0, rdzv::kMaxName};
inline constexpr Bounds kSomeName{1, rdzv::kMaxName};
inline constexpr Bounds kSentence{0, rdzv::kMaxSentence};
inline constexpr Bounds kSessionKey{0, rdzv::kMaxSessionKey};
inline constexpr Bounds kPart{0, rdzv::kMaxPart};
inline constexpr Bounds kFlightBytes{0, rdzv::kMaxFlightBytes};
inline constexpr Bounds kLines{0, rdzv::kMaxLines, rdzv::kMaxLine};

// --- parts ------------------------------------------------------------------------------------------------------

template <>
struct Described<Endpoint> {
  static constexpr auto fields = std::tuple(  //
      field("host", &Endpoint::host, kName),  //
      field("port", &Endpoint::port));
};

// Members with the same option are shown as one value: "2:4".
template <>
struct Described<JobSettings> {
  using T = JobSettings;
  static constexpr auto fields = std::tuple(  //
      field("backend", &T::backend, {}, "--rdzv-backend"), field("nnodes_min", &T::nnodes_min, kCount, "--nnodes"),
      field("nnodes_max", &T::nnodes_max, kCount, "--nnodes"),
      field("max_restarts", &T::max_restarts, kNumber, "--max-restarts"),
      field("join_timeout", &T::join_timeout, kDuration, "--rdzv-conf join_timeout"),
      field("last_call_timeout", &T::last_call_timeout, kDuration, "--rdzv-conf last_call_timeout"),
      field("close_timeout", &T::close_timeout, kDuration, "--rdzv-conf close_timeout"),
      field("keep_alive_interval", &T::keep_alive_interval, {1, kMaxDuration.count()},
            "--rdzv-conf keep_alive_interval"),
      field("keep_alive_max_attempt", &T::keep_alive_max_attempt, {1, rdzv::kMaxKeepAliveAttempts},
            "--rdzv-conf keep_alive_max_attempt"),
      field("crash_loop_limit", &T::crash_loop_limit, kNumber, "--crash-loop-limit"),
      field("crash_loop_window", &T::crash_loop_window, kDuration, "the crash loop window"));
  static std::string problem(const JobSettings& job) {
    if (job.lease() > kMaxLease) return lease_too_long(job);
    if (job.nnodes_max >= job.nnodes_min) return "";
    return "nnodes_max " + std::to_string(job.nnodes_max) + " is below nnodes_min " + std::to_string(job.nnodes_min);
  }
};

template <>
struct Described<rdzv::NodeInfo> {
  using T = rdzv::NodeInfo;
  static constexpr auto fields = std::tuple(  //
      field("run_id", &T::run_id, kSomeName), field("node_id", &T::node_id, kSomeName), field("host", &T::host, kName),
      field("address", &T::address, kName), field("role", &T::role, kName),
      field("topology_key", &T::topology_key, kName), field("nproc", &T::nproc, kCount),
      field("node_rank", &T::node_rank, {0, rdzv::kMaxCount}), field("worker_store_port", &T::worker_store_port),
      field("job", &T::job));
};

template <>
struct Described<FailureRecord> {
  using T = FailureRecord;
  static constexpr auto fields = std::tuple(  //
      field("rank", &T::rank, kNumber), field("local_rank", &T::local_rank, kNumber),
      field("group_rank", &T::group_rank, kNumber), field("round", &T::round, kNumber),
      field("restart_count", &T::restart_count, kNumber), field("host", &T::host, kName),
      field("pid", &T::pid, kNumber), field("exit_code", &T::exit_code, {0, 255}), field("signal", &T::signal, {0, 64}),
      field("unix_time", &T::unix_time, kNumber), field("out_of_memory", &T::out_of_memory),
      field("stopped_by_us", &T::stopped_by_us), field("last_lines", &T::last_lines, kLines),
      field("error_file_json", &T::error_file_json, {0, rdzv::kMaxErrorFile}),
      field("log_paths", &T::log_paths, kLines), field("message", &T::message, kSentence));
};

template <>
struct Described<rdzv::RosterEntry> {
  using T = rdzv::RosterEntry;
  static constexpr auto fields = std::tuple(  //
      field("node_id", &T::node_id, kName), field("host", &T::host, kName), field("address", &T::address, kName),
      field("group_rank", &T::group_rank, kNumberOrNone), field("first_rank", &T::first_rank, kNumberOrNone),
      field("nproc", &T::nproc, {0, rdzv::kMaxCount}), field("state", &T::state));
};

// --- from an agent ----------------------------------------------------------------------------------------------

template <>
struct Described<rdzv::Join> {
  using T = rdzv::Join;
  static constexpr rdzv::Frame frame{1, "Join"};
  static constexpr auto fields = std::tuple(  //
      field("node", &T::node), field("connection", &T::connection), field("last_round", &T::last_round, kNumber),
      field("session_key", &T::session_key, kSessionKey));
};

// After a broken connection: "I am member k of round R".
template <>
struct Described<rdzv::Register> {
  using T = rdzv::Register;
  static constexpr rdzv::Frame frame{2, "Register"};
  static constexpr auto fields = std::tuple(  //
      field("node", &T::node), field("connection", &T::connection), field("slice", &T::slice),
      field("state", &T::state), field("session_key", &T::session_key, kSessionKey));
};

// Every keep_alive_interval.
template <>
struct Described<rdzv::Heartbeat> {
  using T = rdzv::Heartbeat;
  static constexpr rdzv::Frame frame{3, "Heartbeat"};
  static constexpr auto fields = std::tuple(field("sequence", &T::sequence), field("want_reason", &T::want_reason));
};

// Sent before the workers are signalled.
template <>
struct Described<rdzv::Leave> {
  using T = rdzv::Leave;
  static constexpr rdzv::Frame frame{4, "Leave"};
  static constexpr auto fields = std::tuple(field("round", &T::round, kNumber), field("reason", &T::reason, kSentence));
};

template <>
struct Described<rdzv::Failure> {
  using T = rdzv::Failure;
  static constexpr rdzv::Frame frame{5, "Failure"};
  static constexpr auto fields = std::tuple(  //
      field("age", &T::age, kDuration), field("permanent", &T::permanent), field("quick", &T::quick),
      field("record", &T::record));
};

template <>
struct Described<rdzv::Done> {
  using T = rdzv::Done;
  static constexpr rdzv::Frame frame{6, "Done"};
  static constexpr auto fields = std::tuple(field("round", &T::round, kNumber), field("result", &T::result));
};

template <>
struct Described<rdzv::FlightReply> {
  using T = rdzv::FlightReply;
  static constexpr rdzv::Frame frame{8, "FlightReply"};
  static constexpr auto fields = std::tuple(field("id", &T::id), field("bytes", &T::bytes, kFlightBytes));
};

// --- from the rendezvous ----------------------------------------------------------------------------------------

template <>
struct Described<rdzv::Assignment> {
  using T = rdzv::Assignment;
  static constexpr rdzv::Frame frame{64, "Assignment"};
  static constexpr auto fields = std::tuple(  //
      field("round", &T::round, kNumber), field("group_rank", &T::group_rank, kNumber),
      field("group_world_size", &T::group_world_size, kCount), field("first_rank", &T::first_rank, kNumber),
      field("world_size", &T::world_size, kSize), field("first_role_rank", &T::first_role_rank, kNumber),
      field("role_world_size", &T::role_world_size, kSize), field("restart_count", &T::restart_count, kNumber),
      field("master", &T::master));
  static std::string problem(const T& slice) {
    if (slice.group_rank.value >= slice.group_world_size) return "group_rank is not below group_world_size";
    if (slice.first_rank.value >= slice.world_size) return "first_rank is not below world_size";
    if (slice.first_role_rank >= slice.role_world_size) return "first_role_rank is not below role_world_size";
    return "";
  }
};

template <>
struct Described<rdzv::HeartbeatAck> {
  using T = rdzv::HeartbeatAck;
  static constexpr rdzv::Frame frame{65, "HeartbeatAck"};
  static constexpr auto fields = std::tuple(  //
      field("sequence", &T::sequence), field("reason", &T::reason, kSentence));
};

template <>
struct Described<rdzv::Restart> {
  using T = rdzv::Restart;
  static constexpr rdzv::Frame frame{66, "Restart"};
  static constexpr auto fields = std::tuple(  //
      field("round", &T::round, kNumber), field("restart_count", &T::restart_count, kNumber),
      field("reason", &T::reason, kSentence));
};

template <>
struct Described<rdzv::Finished> {
  using T = rdzv::Finished;
  static constexpr rdzv::Frame frame{67, "Finished"};
  static constexpr auto fields = std::tuple(field("result", &T::result));
};

template <>
struct Described<rdzv::Shutdown> {
  using T = rdzv::Shutdown;
  static constexpr rdzv::Frame frame{68, "Shutdown"};
  static constexpr auto fields = std::tuple(  //
      field("cause", &T::cause), field("reason", &T::reason, kSentence),
      field("failures", &T::failures, {0, rdzv::kMaxFailures}), field("root", &T::root, {0, rdzv::kMaxFailures - 1}));
  static std::string problem(const T& m) {
    if (!m.root || *m.root < m.failures.size()) return "";
    return "root cause " + std::to_string(*m.root) + " is not in the list";
  }
};

template <>
struct Described<rdzv::Refused> {
  using T = rdzv::Refused;
  static constexpr rdzv::Frame frame{69, "Refused"};
  static constexpr auto fields = std::tuple(field("retry", &T::retry), field("reason", &T::reason, kSentence));
};

template <>
struct Described<rdzv::FlightRequest> {
  using T = rdzv::FlightRequest;
  static constexpr rdzv::Frame frame{71, "FlightRequest"};
  static constexpr auto fields = std::tuple(  //
      field("id", &T::id), field("max_bytes", &T::max_bytes, kFlightBytes));
};

// News that changes nothing for the reader.
template <>
struct Described<rdzv::Notice> {
  using T = rdzv::Notice;
  static constexpr rdzv::Frame frame{72, "Notice"};
  static constexpr auto fields = std::tuple(field("kind", &T::kind), field("text", &T::text, kSentence));
};

template <>
struct Described<rdzv::Registered> {
  using T = rdzv::Registered;
  static constexpr rdzv::Frame frame{73, "Registered"};
  static constexpr auto fields = std::tuple(field("round", &T::round, kNumber));
};

// --- from an operator, and the answers --------------------------------------------------------------------------

template <>
struct Described<rdzv::StatusRequest> {
  using T = rdzv::StatusRequest;
  static constexpr rdzv::Frame frame{128, "StatusRequest"};
  static constexpr auto fields = std::tuple(field("run_id", &T::run_id, kName));
};

template <>
struct Described<rdzv::DrainRequest> {
  using T = rdzv::DrainRequest;
  static constexpr rdzv::Frame frame{129, "DrainRequest"};
  static constexpr auto fields = std::tuple(  //
      field("run_id", &T::run_id, kName), field("node", &T::node, kName), field("token", &T::token, kSentence));
};

template <>
struct Described<rdzv::StopRequest> {
  using T = rdzv::StopRequest;
  static constexpr rdzv::Frame frame{130, "StopRequest"};
  static constexpr auto fields = std::tuple(field("run_id", &T::run_id, kName), field("token", &T::token, kSentence));
};

template <>
struct Described<rdzv::FlightQuery> {
  using T = rdzv::FlightQuery;
  static constexpr rdzv::Frame frame{131, "FlightQuery"};
  static constexpr auto fields = std::tuple(field("run_id", &T::run_id, kName));
};

template <>
struct Described<rdzv::RosterRequest> {
  using T = rdzv::RosterRequest;
  static constexpr rdzv::Frame frame{132, "RosterRequest"};
  static constexpr auto fields = std::tuple(field("run_id", &T::run_id, kName));
};

// The last word on each request.
template <>
struct Described<rdzv::Reply> {
  using T = rdzv::Reply;
  static constexpr rdzv::Frame frame{160, "Reply"};
  static constexpr auto fields = std::tuple(field("ok", &T::ok), field("text", &T::text, kPart));
};

// One per node, then Reply.
template <>
struct Described<rdzv::FlightPart> {
  using T = rdzv::FlightPart;
  static constexpr rdzv::Frame frame{161, "FlightPart"};
  static constexpr auto fields = std::tuple(  //
      field("host", &T::host, kName), field("group_rank", &T::group_rank, kNumberOrNone),
      field("bytes", &T::bytes, kFlightBytes));
};

// Goes before the Reply's text (StatusRequest: JSON).
template <>
struct Described<rdzv::ReplyPart> {
  using T = rdzv::ReplyPart;
  static constexpr rdzv::Frame frame{162, "ReplyPart"};
  static constexpr auto fields = std::tuple(field("text", &T::text, kPart));
};

// Pages in the order of ranks, then Reply.
template <>
struct Described<rdzv::Roster> {
  using T = rdzv::Roster;
  static constexpr rdzv::Frame frame{163, "Roster"};
  static constexpr auto fields = std::tuple(field("entries", &T::entries, {0, rdzv::kRosterPage}));
};

}  // namespace ddprun
