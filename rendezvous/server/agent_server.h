#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/rdzv_protocol.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/net/refusal_log.h"
#include "rendezvous/server/admin_service.h"
#include "rendezvous/server/agent_connection.h"
#include "rendezvous/server/job_runner.h"

namespace ddprun::rendezvous {

// The connections of agents and of ddpctl: who speaks for which node. What they say goes to the job's membership or to
// the admin service.
class AgentServer : public std::enable_shared_from_this<AgentServer> {
 public:
  // `acceptor` and `runner` outlive it. `greeting`: "daemon", or rdzv::embedded_greeting().
  AgentServer(Acceptor& acceptor, JobRunner& runner, std::shared_ptr<AdminService> admin, std::string greeting);
  void start();
  // Nodes of other jobs are sent away.
  void serve_only(RunId run_id) { only_ = std::move(run_id); }

  // To all agents; then their connections close, within a second also for one that does not read. Nobody new is taken.
  void say_goodbye(const rdzv::Shutdown& goodbye);
  void close();

  bool empty() const { return connections_.empty(); }
  std::uint64_t accepted() const { return accepted_; }
  std::uint64_t refused_count() const { return refused_count_; }

 private:
  static constexpr std::size_t kOperators = 16;

  void accept(Acceptor::Opening opening);
  void refused(const AgentConnection& connection, const std::string& why);
  void on_agent(AgentConnection& connection, rdzv::AgentMessage message);
  static void correct_address(const AgentConnection& connection, rdzv::NodeInfo& node);
  Job* introduce(AgentConnection& connection, const rdzv::NodeInfo& node, std::uint64_t number,
                 const std::string& session_key);
  void on_operator(AgentConnection& connection, rdzv::OperatorMessage message);
  bool make_room_for_operator(const AgentConnection& newcomer);
  void drop_the_slowest();
  void on_end(AgentConnection& connection, bool lost, const std::string& why);
  void forget(AgentConnection& connection, bool lost, const std::string& why);

  Acceptor& acceptor_;
  JobRunner& runner_;
  const std::shared_ptr<AdminService> admin_;
  const std::string greeting_;
  std::optional<RunId> only_;
  std::unordered_map<AgentConnection*, std::shared_ptr<AgentConnection>> connections_;
  std::unordered_map<AgentConnection*, TimePoint> operators_;  // who has asked something, and when last
  const std::shared_ptr<UnsentSum> unsent_ = std::make_shared<UnsentSum>();
  std::uint64_t accepted_ = 0;
  std::uint64_t refused_count_ = 0;
  RefusalLog refusal_log_, impostor_log_;
  bool leaving_ = false;
  bool closed_ = false;
};

}  // namespace ddprun::rendezvous
