// Messages -> bytes. What is longer than its bound is cut here; the reader refuses it.
#include <algorithm>

#include "common/rdzv_protocol.h"
#include "common/rdzv_protocol_types.h"

namespace ddprun::rdzv {
namespace {

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
  for (const std::chrono::milliseconds time :
       {node.join_timeout, node.last_call_timeout, node.close_timeout, node.keep_alive_interval}) {
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

}  // namespace

std::string encode(const AgentMessage& message) { return encode_frame(message); }
std::string encode(const ServerMessage& message) { return encode_frame(message); }
std::string encode(const OperatorMessage& message) { return encode_frame(message); }

}  // namespace ddprun::rdzv
