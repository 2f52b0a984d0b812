#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/job_settings.h"
#include "common/log.h"
#include "common/options.h"
#include "common/result.h"
#include "common/types.h"
#include "launcher/output/output.h"
#include "launcher/process/leftover_plan.h"
#include "launcher/process/stdin_policy.h"

// Flags and PET_* variables -> LaunchOptions: checked values, nothing done yet. Pure: the environment and the host's
// facts (device counts) come in as arguments.
namespace ddprun::launcher {

// Which program this is, by argv[0]: `ddprun` or the legacy `ddprun-launch` (python -m torch.distributed.launch).
enum class Flavour { run, launch };

// What else happens with output and reports; the streams themselves are in OutputPolicy.
struct LogOptions {
  std::string log_dir;         // as LogTree::open takes it: "" = temporary, "/dev/null" = no files at all
  std::string report_file;     // --report: the last word as JSON; "" = none
  std::string own_error_file;  // TORCHELASTIC_ERROR_FILE of the launcher itself; "" = none
  LogLevel level = LogLevel::info;
  bool level_given = false;
};

// ddprun-launch: how the script is told its local rank on its command line.
enum class LocalRankArgument { none, hyphen, underscore, by_script };

inline constexpr std::chrono::seconds kStaticJoinTimeout{900};  // torchrun's default of the static backend

// What --rdzv-conf says beside JobSettings.
struct RendezvousConf {
  std::chrono::milliseconds read_timeout{60'000};  // until the rendezvous answers at all
  std::optional<bool> is_host;                     // nullopt = found out
  bool keep_on_silence = false;                    // on_silence=keep: workers run on when the rendezvous is silent
};

// How the nodes find each other, and this one.
struct RendezvousChoice {
  RunId run_id{"none"};
  Endpoint endpoint;       // port 0: this launcher serves it on a port of its choice (one node, or --standalone)
  bool local_job = false;  // one node and nobody else can join: all listeners on loopback, MASTER_ADDR 127.0.0.1
  RendezvousConf conf;
};

struct PortChoice {
  std::uint16_t first = 0;  // range of the ports that we choose; 0, 0 = the kernel chooses
  std::uint16_t last = 0;
  std::optional<std::uint16_t> master;  // --master-port: the worker store of group rank 0 is served there
};

// This node, where it differs from the others.
struct NodeChoice {
  std::int64_t nproc = 1;
  std::string role = "default";
  std::optional<std::int64_t> rank;  // given = hint (c10d) or the rank (static)
  std::string address;               // --local-addr; "" = found out
  std::string topology_key;
  std::string network_interface;  // "" = none named
  PortChoice ports;
};

// What is run.
struct ProgramChoice {
  std::string name;
  std::vector<std::string> arguments;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  LocalRankArgument local_rank_argument = LocalRankArgument::none;
};

struct WorkerChoices {
  std::vector<std::pair<std::string, std::string>> environment;  // --env and presets, in order; later wins
  std::vector<std::pair<int, std::uint64_t>> limits;             // RLIMIT_*, soft = hard
  std::vector<std::string> devices;                              // --devices; empty = as inherited
  std::string numa_binding;                                      // "", node, socket, exclusive, core-complex
  bool virtual_local_rank = false;
  bool signal_group = false;  // --signal-scope=group
  Leftovers leftovers = Leftovers::end;
  StdinPolicy stdin_policy;
  bool bind_master_port = false;  // TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, as in torch
};

struct Supervision {
  std::vector<int> signals_to_handle;   // end the job
  std::vector<int> signals_to_forward;  // pass on and go on (SIGUSR1, SIGUSR2 unless they are in the list above)
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::chrono::milliseconds restart_backoff{0};  // before restart k: this x 2^(k-1), at most 60 s
  bool torchrun_exit_codes = false;              // --exit-code=torchrun
  enum class Events { none, console, dynamic_rendezvous } events = Events::none;  // --event-log-handler
};

struct LaunchOptions {
  Flavour flavour = Flavour::run;
  JobSettings job;
  RendezvousChoice rdzv;
  NodeChoice node;
  ProgramChoice program;
  WorkerChoices workers;
  Supervision supervision;
  bool preflight = true;
  OutputPolicy output;
  LogOptions logs;

  // Things the user should hear once, before the start ("unknown --rdzv-conf key 'jion_timeout' ...").
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // the same, but nothing to worry about
};

// What the host has, asked only when an option needs it; device.h and cpu_budget.h have the real answers.
struct HostFacts {
  std::function<Result<std::int64_t>()> gpu_count;  // error: why GPUs cannot be counted (no driver library, ...)
  std::function<std::int64_t()> cpu_count;          // CPUs that we may use
  std::vector<std::string> variables;               // names of all variables of our environment
};

// The option table of either program: help, README, PET_* variables and parsing come from it.
const OptionTable& option_table(Flavour flavour);

// What to write instead of an option of another launcher (mpirun, accelerate, deepspeed ...): a sentence, or "".
// `word`: as it was given, "-np" or "--num_gpus=4".
std::string foreign_option_hint(const std::string& word);

// Script for a shell's completion of all long options. `shell`: bash, zsh or tcsh.
std::string completion_script(Flavour flavour, const std::string& shell);

// "3" or "0:3,12:1". Errors: invalid_argument with the text and what is wrong with it.
Result<StreamChoice> parse_stream_choice(const std::string& text);

// Errors: invalid_argument, one sentence (exit code 2).
Result<LaunchOptions> make_launch_options(const ParsedOptions& parsed, Flavour flavour, const EnvLookup& env,
                                          const HostFacts& host);

}  // namespace ddprun::launcher
