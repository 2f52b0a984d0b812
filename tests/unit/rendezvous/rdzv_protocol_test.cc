#include "common/rdzv_protocol.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

namespace ddprun::rdzv {
namespace {

NodeInfo some_node() {
  NodeInfo node;
  node.run_id = RunId("job7");
  node.node_id = NodeId("0123456789abcdef");
  node.host = "hostA";
  node.address = "fd00::1";
  node.role = "trainer";
  node.topology_key = "rack3";
  node.job.nnodes_min = 2;
  node.job.nnodes_max = 8;
  node.nproc = 4;
  node.node_rank = 3;
  node.worker_store_port = 40123;
  node.job.backend = RdzvBackend::static_ranks;
  node.job.max_restarts = 5;
  return node;
}

FailureRecord some_failure() {
  FailureRecord f;
  f.rank = Rank(5);
  f.local_rank = LocalRank(1);
  f.round = Round(2);
  f.host = "hostB";
  f.pid = 4711;
  f.signal = 9;
  f.unix_time = std::chrono::milliseconds(1'800'000'000'123);
  f.out_of_memory = true;
  f.last_lines = {"one", "", "three \xff"};
  f.error_file_json = "{}";
  f.log_paths = {"/tmp/x/5.err"};
  return f;
}

std::vector<AgentMessage> agent_messages() {
  Join join;
  join.node = some_node();
  join.last_round = Round(6);
  join.connection = 3;
  join.session_key = "00112233445566778899aabbccddeeff";
  Register registration;
  registration.node = some_node();
  registration.node.node_rank.reset();
  registration.slice.round = Round(6);
  registration.slice.world_size = 12;
  registration.state = MemberState::finished;
  registration.session_key = "00112233445566778899aabbccddeeff";
  Failure failure;
  failure.age = std::chrono::milliseconds(17);
  failure.permanent = failure.quick = true;
  failure.record = some_failure();
  Leave leave;
  leave.reason = "signal 15";
  FlightReply flight;
  flight.id = 9;
  flight.bytes = std::string(1000, '\0');
  return {join, registration, Heartbeat{7, true}, leave, failure, Done{Round(6), DoneResult::resume_me}, flight};
}

std::vector<ServerMessage> server_messages() {
  Assignment assignment;
  assignment.round = Round(7);
  assignment.master = Endpoint{"10.0.0.1", 29500};
  Shutdown shutdown;
  shutdown.reason = "rank 5 failed";
  shutdown.failures = {some_failure(), some_failure()};
  shutdown.root = 1;
  Roster roster;
  roster.entries.resize(2);
  roster.entries[1].host = "b";
  return {assignment,
          HeartbeatAck{7, "2 of 4 nodes"},
          Restart{Round(7), 2, "hostB is lost"},
          Finished(),
          shutdown,
          Refused{true, "taken"},
          FlightRequest{1, 100},
          Notice{NoticeKind::spare, "spare"},
          Registered{Round(7)},
          Reply{false, "no"},
          FlightPart{"a", 3, "bytes"},
          ReplyPart{"{"},
          roster};
}

std::vector<OperatorMessage> operator_messages() {
  return {StatusRequest{"j"}, DrainRequest{"j", "n", "t"}, StopRequest{"j", "t"}, FlightQuery{"j"}, RosterRequest{"j"}};
}

// A frame as text: 32 bytes a line; a line that is the same as the one before is left out.
std::string hex_of(const std::string& frame) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string all, last;
  for (std::size_t at = 0; at < frame.size(); at += 32) {
    std::string line = "  ";
    for (const char c : frame.substr(at, 32)) {
      line += kDigits[static_cast<unsigned char>(c) >> 4];
      line += kDigits[static_cast<unsigned char>(c) & 15];
    }
    if (line != last) all += line + "\n";
    last = line;
  }
  return all;
}

std::string_view payload(const std::string& frame) { return std::string_view(frame).substr(4); }

TEST(RdzvProtocol, LengthPrefixIsThatOfTheRest) {
  const std::string frame = encode(ServerMessage(Finished()));
  EXPECT_EQ(frame, std::string("\x02\0\0\0\x43\0", 6));
}

// What is on the wire, byte by byte. DDPRUN_REWRITE=1 writes it anew; a change here needs a new kVersion.
TEST(RdzvProtocol, TheBytesOfAVersionNeverChange) {
  std::ostringstream now;
  now << "version " << kVersion << "\n";
  const auto add = [&now](const char* who, const auto& messages) {
    for (const auto& message : messages) {
      const std::string frame = encode(message);
      now << who << " type " << int(static_cast<unsigned char>(frame.at(4))) << ", " << frame.size() << " bytes\n"
          << hex_of(frame);
    }
  };
  add("agent", agent_messages());
  add("server", server_messages());
  add("operator", operator_messages());
  const std::string file = DDPRUN_SOURCE_DIR "/tests/testdata/rdzv_protocol/messages.txt";
  std::ifstream in(file);
  const std::string wanted{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (std::getenv("DDPRUN_REWRITE") != nullptr && wanted != now.str()) {
    in.close();
    std::ofstream(file) << now.str();
    return;
  }
  EXPECT_EQ(wanted, now.str());
}

TEST(RdzvProtocol, EveryMessageComesBackAsItWas) {
  for (const AgentMessage& message : agent_messages()) {
    const std::string frame = encode(message);
    const auto back = decode_agent(payload(frame));
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(back->index(), message.index());
    EXPECT_EQ(encode(*back), frame);
  }
  for (const ServerMessage& message : server_messages()) {
    const std::string frame = encode(message);
    const auto back = decode_server(payload(frame));
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(back->index(), message.index());
    EXPECT_EQ(encode(*back), frame);
  }
  for (const OperatorMessage& message : operator_messages()) {
    const std::string frame = encode(message);
    const auto back = decode_operator(payload(frame));
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(encode(*back), frame);
  }
}

TEST(RdzvProtocol, ACutOrLongerMessageIsMalformed) {
  for (const AgentMessage& message : agent_messages()) {
    const std::string frame = encode(message);
    for (std::size_t size = 0; size < payload(frame).size(); ++size) {
      EXPECT_FALSE(decode_agent(payload(frame).substr(0, size)));
    }
    EXPECT_FALSE(decode_agent(std::string(payload(frame)) + "x"));
  }
  for (const ServerMessage& message : server_messages()) {
    const std::string frame = encode(message);
    for (std::size_t size = 0; size < payload(frame).size(); ++size) {
      EXPECT_FALSE(decode_server(payload(frame).substr(0, size)));
    }
    EXPECT_FALSE(decode_server(std::string(payload(frame)) + "x"));
  }
}

TEST(RdzvProtocol, ChangedBytesAreRefusedOrMakeAnotherMessageThatCanBeWritten) {
  std::mt19937 random(11);
  std::vector<std::string> frames;
  for (const AgentMessage& message : agent_messages()) frames.push_back(encode(message));
  for (const ServerMessage& message : server_messages()) frames.push_back(encode(message));
  std::size_t accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(payload(frames[random() % frames.size()]));
    for (unsigned n = 1 + random() % 3; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (const auto agent = decode_agent(bytes)) accepted += encode(*agent).size() > 4 ? 1 : 0;
    if (const auto server = decode_server(bytes)) accepted += encode(*server).size() > 4 ? 1 : 0;
  }
  EXPECT_GT(accepted, 0u);
}

TEST(RdzvProtocol, BoundsAreCheckedAndNamed) {
  Join join;
  join.node = some_node();
  join.node.nproc = 0;
  auto refused = decode_agent(payload(encode(AgentMessage(join))));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "Join message: nproc 0 is not in 1..1000000");
  join.node = some_node();
  join.node.job.nnodes_min = 9;
  refused = decode_agent(payload(encode(AgentMessage(join))));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("nnodes_max 8"), std::string::npos);
  join.node = some_node();
  join.node.job.keep_alive_interval = std::chrono::seconds(60);
  join.node.job.keep_alive_max_attempt = 10;
  EXPECT_TRUE(decode_agent(payload(encode(AgentMessage(join)))));
  join.node.job.keep_alive_max_attempt = 11;
  refused = decode_agent(payload(encode(AgentMessage(join))));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("keep_alive_interval x keep_alive_max_attempt is 660 s; at most 600 s"),
            std::string::npos);
  Register registration;
  registration.node = some_node();
  registration.slice.group_rank = GroupRank(1);
  refused = decode_agent(payload(encode(AgentMessage(registration))));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("group_rank is not below group_world_size"), std::string::npos);
  join.node = some_node();
  join.node.node_id = NodeId();
  EXPECT_FALSE(decode_agent(payload(encode(AgentMessage(join)))));
}

TEST(RdzvProtocol, AnEnumerationIsWhatItsWordsName) {
  Register registration;
  registration.node = some_node();
  std::string frame = encode(AgentMessage(registration));
  EXPECT_TRUE(decode_agent(payload(frame)));
  frame[frame.size() - 5] = static_cast<char>(kEnumSize<MemberState>);  // before the session key, which is empty
  const auto refused = decode_agent(payload(frame));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "Register message: unknown state 5");
  EXPECT_EQ(to_word(MemberState::resumable), "resumable");
  EXPECT_EQ(from_word<MemberState>("stopping"), MemberState::stopping);
  EXPECT_EQ(from_word<RdzvBackend>("static"), RdzvBackend::static_ranks);
  EXPECT_FALSE(from_word<RdzvBackend>("Static"));
  EXPECT_EQ(to_word(static_cast<RdzvBackend>(9)), "");
}

TEST(JobSettings, TheFirstDifferenceIsNamedByItsOption) {
  const JobSettings ours;
  EXPECT_FALSE(first_difference(ours, ours));
  const auto differs = [&ours](auto change) {
    JobSettings theirs;
    change(theirs);
    const auto found = first_difference(theirs, ours);
    return found ? found->option + " " + found->left + " " + found->right : "";
  };
  EXPECT_EQ(differs([](JobSettings& j) { j.nnodes_max = 4; }), "--nnodes 1:4 1");
  EXPECT_EQ(differs([](JobSettings& j) { j.nnodes_min = j.nnodes_max = 2; }), "--nnodes 2 1");
  EXPECT_EQ(differs([](JobSettings& j) { j.backend = RdzvBackend::static_ranks; }), "--rdzv-backend static c10d");
  EXPECT_EQ(differs([](JobSettings& j) { j.close_timeout += std::chrono::milliseconds(1); }),
            "--rdzv-conf close_timeout 30001 ms 30000 ms");
  EXPECT_EQ(differs([](JobSettings& j) { j.crash_loop_limit = j.max_restarts = 2; }), "--max-restarts 2 0");
  EXPECT_EQ(differs([](JobSettings& j) { j.crash_loop_limit = 2; }), "--crash-loop-limit 2 0");
  EXPECT_EQ(differs([](JobSettings& j) { j.crash_loop_window *= 2; }), "the crash loop window 10000 ms 5000 ms");
}

TEST(RdzvProtocol, LongTextsAreCutByTheWriterAndTheLastLinesAreKept) {
  Failure failure;
  failure.record = some_failure();
  failure.record.last_lines.assign(100, std::string(5'000, 'x'));
  failure.record.last_lines.back() = "the end";
  failure.record.error_file_json.assign(1 << 20, 'e');
  const std::string frame = encode(AgentMessage(failure));
  EXPECT_LE(frame.size(), kMaxAgentFrame);
  const auto back = decode_agent(payload(frame));
  ASSERT_TRUE(back);
  const auto& record = std::get<Failure>(*back).record;
  EXPECT_EQ(record.last_lines.size(), kMaxLines);
  EXPECT_EQ(record.last_lines.back(), "the end");
  EXPECT_EQ(record.error_file_json.size(), kMaxErrorFile);
}

TEST(RdzvProtocol, TheRootCauseTravelsHoweverManyFailuresThereAre) {
  Shutdown shutdown;
  for (int i = 0; i < 100; ++i) {
    shutdown.failures.push_back(some_failure());
    shutdown.failures.back().rank = Rank(i);
  }
  shutdown.root = 50;
  const auto back = decode_server(payload(encode(ServerMessage(shutdown))));
  ASSERT_TRUE(back);
  const auto& got = std::get<Shutdown>(*back);
  EXPECT_EQ(got.failures.size(), kMaxFailures);
  ASSERT_TRUE(got.root);
  EXPECT_EQ(got.failures.at(*got.root).rank, Rank(50));
}

TEST(RdzvProtocol, OpeningsOfAllVersionsAreRead) {
  Hello hello;
  hello.version = 77;
  hello.kind = static_cast<PeerKind>(9);
  auto back = decode_hello(encode(hello));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->version, 77);
  hello.version = kVersion;
  EXPECT_FALSE(decode_hello(encode(hello)));
  EXPECT_FALSE(decode_hello("GET / HTTP/"));
  HelloReply reply;
  reply.accepted = false;
  reply.why = version_mismatch(kVersion, 77);
  const std::string bytes = encode(reply);
  const auto head = decode_hello_reply_head(std::string_view(bytes).substr(0, kHelloReplyFixedBytes));
  ASSERT_TRUE(head);
  EXPECT_FALSE(head->accepted);
  EXPECT_EQ(bytes.substr(kHelloReplyFixedBytes, head->why_bytes), reply.why);
  EXPECT_NE(reply.why.find("install the same ddprun on every node"), std::string::npos);
}

TEST(RdzvProtocol, DescribesAFailureInASentence) {
  FailureRecord failure = some_failure();
  EXPECT_EQ(describe(failure), "rank 5 on hostB ended with signal 9 (SIGKILL)");
  failure.signal = 0;
  failure.exit_code = 3;
  EXPECT_EQ(describe(failure), "rank 5 on hostB ended with exit code 3");
  failure.message = "hostB cannot start its workers";
  EXPECT_EQ(describe(failure), failure.message);
}

}  // namespace
}  // namespace ddprun::rdzv
