#include "launcher/options/engine_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/slurm_list.h"

namespace ddprun::launcher {
namespace {

Error refusal(std::string sentence) { return Error(Errc::invalid_argument, std::move(sentence)); }

// --nnodes=1, 1:1
bool one_node(const ParsedOptions& parsed) {
  const std::string& text = parsed.text("nnodes");
  return parsed.given("nnodes") && (text == "1" || text == "1:1");
}

std::string plural(std::int64_t count, const std::string& word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

Error several_on_a_node(const EngineTask& task, const std::string& host) {
  // This node may have one while another has more.
  const std::int64_t here = task.local_size;
  const std::string where = here > 1 ? fmt::format("{} ddprun on {}", here, task.host.empty() ? host : task.host)
                                     : fmt::format("{} ddprun on {}", task.size, plural(task.nodes, "node"));
  const std::int64_t workers =
      here > 1 ? here : (task.size + std::max<std::int64_t>(task.nodes, 1) - 1) / std::max<std::int64_t>(task.nodes, 1);
  const std::string one = task.engine == Engine::slurm     ? "srun --ntasks-per-node=1"
                          : task.engine == Engine::openmpi ? "mpirun -N 1 --bind-to none"
                                                           : "mpiexec -ppn 1";
  return refusal(
      fmt::format("{} started {}; ddprun starts the workers itself: {} ddprun --nproc-per-node={} (a job of "
                  "its own for each: --standalone)",
                  engine_name(task.engine), where, one, workers));
}

std::string bare(const std::string& host) { return host.substr(0, host.find('.')); }

std::optional<Error> shell_refusal(const SlurmShell& shell, const std::string& host, bool endpoint_given) {
  const std::string command = "srun --ntasks-per-node=1 ddprun ...";
  if (shell.kind == SlurmShell::Kind::salloc && !shell.node_list.empty()) {
    const auto nodes = expand_host_list(shell.node_list);
    const auto is_ours = [&host](const std::string& node) { return bare(node) == bare(host); };
    if (nodes && std::none_of(nodes->begin(), nodes->end(), is_ours)) {
      return refusal(
          fmt::format("this shell is on {}, and the nodes of its Slurm job are {}: {}; --engine=none to train "
                      "on {} all the same",
                      host, shell.node_list, command, host));
    }
  }
  if (endpoint_given) return std::nullopt;
  if (shell.kind == SlurmShell::Kind::pty && shell.tasks > 1) {
    return refusal(
        fmt::format("this terminal is one of the {} tasks of its Slurm step on {} ({}): {} without --pty; "
                    "--nnodes=1 to use this host only",
                    shell.tasks, plural(shell.nodes, "node"), shell.node_list, command));
  }
  if (shell.kind != SlurmShell::Kind::pty && shell.nodes > 1) {
    return refusal(
        fmt::format("this job has {} nodes ({}) but ddprun was not started by srun: {}; --nnodes=1 to use this "
                    "host only",
                    shell.nodes, shell.node_list, command));
  }
  return std::nullopt;
}

bool several_nodes_given(const ParsedOptions& parsed) {
  return parsed.given("nnodes") && !one_node(parsed) && !parsed.text("nnodes").starts_with("1:");
}

}  // namespace

bool needs_endpoint(const ParsedOptions& parsed) {
  return !parsed.given("rdzv-endpoint") && !parsed.given("master-addr") &&
         parsed.text("rdzv-conf").find("is_host") == std::string::npos;
}

Result<std::optional<EngineTask>> choose_engine(const ParsedOptions& parsed, const EnvLookup& env,
                                                const std::string& host) {
  auto wanted = parse_engine(parsed.text("engine"));
  if (!wanted) return std::move(wanted).error().with_context(parsed.source("engine"));
  if (parsed.flag("standalone") || one_node(parsed) || *wanted == Engine::none) return std::optional<EngineTask>();
  auto task = find_engine_task(env, *wanted);
  if (!task) return std::move(task).error().with_context(parsed.source("engine"));
  if (*task) {
    if (!(*task)->one_a_node()) return several_on_a_node(**task, host);
    if ((*task)->size == 1) return std::optional<EngineTask>();
    return task;
  }
  if (const auto shell = find_slurm_shell(env)) {
    if (auto refused = shell_refusal(*shell, host, !needs_endpoint(parsed))) return std::move(*refused);
  }
  if (env("KUBERNETES_SERVICE_HOST") && several_nodes_given(parsed) && needs_endpoint(parsed)) {
    return refusal(
        "the pods of a job meet at the name of the first one: --rdzv-backend=c10d --rdzv-endpoint=JOB-0.SERVICE:29400, "
        "with JOB an Indexed Job and SERVICE a headless Service that is its pods' subdomain");
  }
  return std::optional<EngineTask>();
}

std::string take_from_engine(ParsedOptions& parsed, const EngineTask& task, const EngineRendezvous& rendezvous,
                             std::int64_t gpus) {
  const std::string source(engine_name(task.engine));
  std::string taken;
  const auto take = [&](const char* name, const std::string& value) {
    if (value.empty() || parsed.given(name)) return;
    parsed.fill(name, value, source + "'s " + name);
    taken += fmt::format(" {}={}", name, value);
  };
  take("nnodes", std::to_string(task.size));
  take("node-rank", std::to_string(task.engine == Engine::slurm ? task.node : task.rank));
  if (rendezvous.endpoint) {
    const Endpoint& endpoint = *rendezvous.endpoint;
    if (parsed.given("rdzv-backend") && parsed.text("rdzv-backend") == "static") {
      take("master-addr", endpoint.host);
      take("master-port", std::to_string(endpoint.port));
    } else {
      take("rdzv-backend", "c10d");
      take("rdzv-endpoint", endpoint.to_string());
    }
  }
  take("rdzv-id", rendezvous.run_id);
  take("topology-key", task.topology_key);
  if (gpus > 0) {
    take("nproc-per-node", "gpu");
  } else if (!parsed.given("nproc-per-node")) {
    taken += "; one worker a node, since --nproc-per-node is not given and there is no GPU";
  }
  return fmt::format("from {} ({}):{}", source, engine_starter(task.engine), taken.empty() ? " nothing" : taken);
}

void take_from_kubernetes(ParsedOptions& parsed, const EnvLookup& env) {
  const auto index = env("JOB_COMPLETION_INDEX");
  const bool number =
      index && !index->empty() && index->size() < 10 && index->find_first_not_of("0123456789") == std::string::npos;
  if (!env("KUBERNETES_SERVICE_HOST") || !number || !several_nodes_given(parsed)) return;
  parsed.fill("node-rank", *index, "JOB_COMPLETION_INDEX");
}

}  // namespace ddprun::launcher
