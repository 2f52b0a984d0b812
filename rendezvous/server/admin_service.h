#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/rdzv_protocol.h"
#include "rendezvous/server/agent_connection.h"
#include "rendezvous/server/job.h"

namespace ddprun::rendezvous {

// Answers ddpctl: status, roster, drain, stop, flight records. Long answers go out in parts, as fast as the operator
// reads; of flight records only so many are asked for at a time as may wait for a slow operator.
class AdminService : public std::enable_shared_from_this<AdminService> {
 public:
  using Apply = std::function<void(Job& job, Actions actions, TimePoint now)>;

  // `jobs` must outlive it. `token`: lets operators of other hosts drain and stop; "" = loopback only.
  AdminService(boost::asio::io_context& io, Jobs& jobs, std::string token, Apply apply);

  void on_message(AgentConnection& connection, rdzv::OperatorMessage message);
  // An agent sent its flight records: nothing happens when nobody asked this node for them.
  void on_flight(AgentConnection& agent, rdzv::FlightReply& reply);
  // All that was sent to this operator is out.
  void on_drained(AgentConnection& connection);
  // A connection is over: that of an agent that was asked, or of the operator.
  void on_end(const AgentConnection& connection);
  void close();

 private:
  struct Node {
    NodeId node_id;
    std::string host;
    std::int64_t group_rank = -1;
  };
  struct Asked {
    Node node;
    const AgentConnection* connection = nullptr;  // compared, never used
    TimePoint limit;
  };
  struct Flight {
    explicit Flight(boost::asio::io_context& io) : timer(io) {}
    std::weak_ptr<AgentConnection> asker;
    RunId run_id;
    std::deque<Node> to_ask;
    std::map<NodeId, Asked> asked;
    std::vector<std::string> silent;  // hosts
    boost::asio::steady_timer timer;
  };

  void answer(AgentConnection& connection, bool ok, std::string text);
  bool may_command(const AgentConnection& connection, const std::string& token) const;
  std::shared_ptr<const std::string> status_text(const std::string& run_id);
  void send_status(AgentConnection& connection, const std::string& run_id);
  void send_roster(AgentConnection& connection, const std::string& run_id);
  void drain(AgentConnection& connection, const rdzv::DrainRequest& request);
  void stop(AgentConnection& connection, const rdzv::StopRequest& request);
  void begin_flight(AgentConnection& connection, const std::string& run_id);
  void advance(std::uint64_t id);
  void end_flight(std::uint64_t id);

  boost::asio::io_context& io_;
  Jobs& jobs_;
  std::string token_;
  Apply apply_;
  std::map<std::uint64_t, Flight> flights_;
  std::uint64_t flight_ids_ = 0;
  std::weak_ptr<const std::string> last_status_;  // while somebody has not read it
  std::string last_status_of_;
  TimePoint last_status_at_;
};

// Compares in a time that depends on the length of `given` only.
bool same_secret(const std::string& given, const std::string& secret);

}  // namespace ddprun::rendezvous
