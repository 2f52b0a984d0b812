#include "launcher/options/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "launcher/options/rdzv_conf.h"

// The flags of ddprun and ddprun-launch. One table: parsing, PET_* variables, --help and the README's list come from
// it.
namespace ddprun::launcher {
namespace {

using Kind = OptionKind;

OptionSpec flag(std::string name, std::string env, std::string compatibility, std::string help) {
  OptionSpec spec;
  spec.name = std::move(name);
  spec.kind = Kind::flag;
  spec.env = std::move(env);
  spec.compatibility = std::move(compatibility);
  spec.help = std::move(help);
  return spec;
}

OptionSpec text(std::string name, std::string value_name, std::string default_text, std::string env,
                std::string compatibility, std::string help) {
  OptionSpec spec;
  spec.name = std::move(name);
  spec.kind = Kind::text;
  spec.value_name = std::move(value_name);
  spec.default_text = std::move(default_text);
  spec.env = std::move(env);
  spec.compatibility = std::move(compatibility);
  spec.help = std::move(help);
  return spec;
}

OptionSpec integer(std::string name, std::string value_name, std::string default_text, std::string env,
                   double min_value, double max_value, std::string compatibility, std::string help) {
  auto spec = text(std::move(name), std::move(value_name), std::move(default_text), std::move(env),
                   std::move(compatibility), std::move(help));
  spec.kind = Kind::integer;
  spec.min_value = min_value;
  spec.max_value = max_value;
  return spec;
}

OptionSpec choice(std::string name, std::vector<std::string> choices, std::string default_text, std::string env,
                  std::string compatibility, std::string help) {
  auto spec =
      text(std::move(name), "", std::move(default_text), std::move(env), std::move(compatibility), std::move(help));
  spec.kind = Kind::choice;
  spec.choices = std::move(choices);
  return spec;
}

OptionSpec short_name(OptionSpec spec, char letter) {
  spec.short_name = letter;
  return spec;
}

OptionSpec repeatable(OptionSpec spec) {
  spec.repeatable = true;
  return spec;
}

// What torchrun has, in its order.
std::vector<OptionSpec> torchrun_options() {
  constexpr double kMany = 1e9;
  return {
      text("nnodes", "N|MIN:MAX", "1:1", "PET_NNODES", "same",
           "number of nodes, or the range within which an elastic job may run"),
      text("nproc-per-node", "N|auto|gpu|cpu", "1", "PET_NPROC_PER_NODE",
           "better: no torch import to count devices (NVML); a GPU that is missing is named before the start",
           "workers on this node: a number, gpu (one per GPU), cpu (one per usable CPU), auto (gpu if there are any, "
           "else cpu)"),
      text("rdzv-backend", "c10d|static", "static", "PET_RDZV_BACKEND",
           "better: etcd and etcd-v2 are refused with the reason; one node without an endpoint and a port is c10d, as "
           "in torchrun",
           "how the nodes find each other"),
      text("rdzv-endpoint", "HOST[:PORT]", "", "PET_RDZV_ENDPOINT", "same",
           "where the rendezvous is served, by one of the nodes or by ddprun-rendezvous; default port 29400"),
      text("rdzv-id", "NAME", LaunchOptions().rdzv.run_id.value, "PET_RDZV_ID",
           "better: an id that was given is kept in single-node mode too",
           "name of the job at the rendezvous; --standalone draws one"),
      text("rdzv-conf", "K=V,...", "", "PET_RDZV_CONF",
           "better: unknown keys are named in a warning, with the nearest known key; bad values are errors",
           rdzv_conf_help()),
      flag("standalone", "PET_STANDALONE", "better: MASTER_ADDR is 127.0.0.1 and all listeners are on loopback",
           "one node with a rendezvous of its own on a free port"),
      integer("max-restarts", "N", std::to_string(JobSettings().max_restarts), "PET_MAX_RESTARTS", 0, kMany,
              "better: one budget for the job, counted alike on every node",
              "how often the workers are started again after a failure"),
      text("monitor-interval", "SECONDS", "0.1", "PET_MONITOR_INTERVAL",
           "better: nothing is polled; the value is checked, and a log line says that it is not needed",
           "torchrun's polling period"),
      choice("start-method", {"spawn", "fork", "forkserver"}, "spawn", "PET_START_METHOD",
             "refused: fork and forkserver; every worker is a fresh interpreter, as with spawn",
             "how --run-path starts a worker"),
      choice("event-log-handler", {"null", "console", "dynamic_rendezvous"}, "null", "PET_EVENT_LOG_HANDLER",
             "better: time stamps are real",
             "events as one JSON object a line on stderr: of workers (console) or of the rendezvous"),
      text("role", "NAME", LaunchOptions().node.role, "PET_ROLE", "same",
           "role of the workers: ROLE_NAME and the prefix of their lines"),
      short_name(flag("module", "PET_MODULE", "same", "run the program as a python module (python -u -m)"), 'm'),
      flag("no-python", "PET_NO_PYTHON", "same", "run the program as it is: a path, else looked up in PATH"),
      flag("run-path", "PET_RUN_PATH", "same", "run the script by runpy.run_path in an interpreter of its own"),
      text("log-dir", "DIR", "", "PET_LOG_DIR",
           "better: nothing is overwritten or left in the temporary directory without need; errors come before the "
           "start",
           "where the log tree <run>/attempt_<n>/<local rank>/ goes (with several nodes the host's name is in <run>); "
           "/dev/null: no files"),
      short_name(text("redirects", "MASK|RANK:MASK,...", "0", "PET_REDIRECTS", "better: local ranks above 9 too",
                      "streams that go to files instead of the console: 1 stdout, 2 stderr, 3 both"),
                 'r'),
      short_name(text("tee", "MASK|RANK:MASK,...", "0", "PET_TEE",
                      "better: local ranks above 9 too; the prefix stands at line starts only; bytes are unchanged",
                      "streams that go to files and, with a prefix, to the console"),
                 't'),
      text("log-line-prefix-template", "TEXT", "", "PET_LOG_LINE_PREFIX_TEMPLATE", "same",
           "prefix of tee'd lines; ${role_name} ${local_rank} ${rank} ${hostname} are replaced; also "
           "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
      text("local-ranks-filter", "RANK,...", "", "PET_LOCAL_RANKS_FILTER", "same",
           "only these local ranks may write to the console"),
      text("duplicate-stdout-filters", "TEXT,...", "", "PET_DUPLICATE_STDOUT_FILTERS", "same",
           "copy tee'd lines that hold one of the texts to filtered_stdout.log (,, is a comma)"),
      text("duplicate-stderr-filters", "TEXT,...", "", "PET_DUPLICATE_STDERR_FILTERS", "same",
           "the same for stderr, to filtered_stderr.log"),
      integer("node-rank", "N", "0", "PET_NODE_RANK", 0, kMany, "better: honoured as a hint under c10d too",
              "this node's index: fixed with the static backend, a wish with c10d"),
      text("master-addr", "HOST", "127.0.0.1", "PET_MASTER_ADDR",
           "better: never loopback where there are several nodes; a name stays a name if it means the same to all",
           "static backend: the host of node rank 0"),
      integer("master-port", "PORT", "", "PET_MASTER_PORT", 1, 65535,
              "better: a busy port is an error that names its holder, before anything starts",
              "static backend: the port that node rank 0 serves; default 29500 with several nodes"),
      text("local-addr", "HOST", "", "PET_LOCAL_ADDR", "same", "this node's address for the other nodes"),
      text("logs-specs", "NAME", "", "",
           "refused: it names a Python plug-in; --redirects, --tee, --log-max-size and --report are here instead",
           "torchrun's plug-in for logs"),
      choice("numa-binding", {"node", "socket", "exclusive", "core-complex"}, "", "",
             "better: hwloc instead of numactl, works without GPUs too", "bind each worker to CPUs near its GPU"),
      text("signals-to-handle", "NAME,...", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "PET_SIGNALS_TO_HANDLE",
           "better: handled from the first moment on; the exit status is 128 + number",
           "signals that are passed to the workers and end the job"),
      integer(
          "shutdown-timeout", "SECONDS", "", "PET_SHUTDOWN_TIMEOUT", 0, kMany,
          "better: honoured on every path (torchrun: on a signal only)",
          fmt::format("patience between the first signal and SIGKILL; also TORCH_ELASTIC_SHUTDOWN_TIMEOUT; default {}",
                      LaunchOptions().supervision.shutdown_timeout.count() / 1000)),
      flag("virtual-local-rank", "PET_VIRTUAL_LOCAL_RANK", "same",
           "LOCAL_RANK=0 and one visible device for each worker"),
      choice("print-completion", {"bash", "zsh", "tcsh"}, "", "", "better: needs no extra package",
             "print a completion script for this shell"),
  };
}

// What only we have.
std::vector<OptionSpec> own_options() {
  return {
      text("devices", "LIST", "", "DDPRUN_DEVICES", "new: which GPUs are used",
           "GPUs of this node to use (CUDA_VISIBLE_DEVICES of every worker), as \"0,2,3\"; --nproc-per-node=gpu counts "
           "them"),
      choice("engine", {"auto", "none", "slurm", "openmpi", "hydra"}, "auto", "DDPRUN_ENGINE",
             "new: srun ddprun and mpirun -N 1 ddprun need no other option",
             "whose words about nodes, ranks and the rendezvous count where an option is not given: those of srun, of "
             "Open "
             "MPI's mpirun or of MPICH's mpiexec; auto: of the one that started this; none: nobody's"),
      repeatable(text("env", "NAME=VALUE", "", "", "new: variables for the workers only",
                      "set a variable for the workers; may be given more than once")),
      text("stdin", "auto|first|all|none|N", "auto", "DDPRUN_STDIN",
           "new: torchrun lets all workers race for its stdin (all)",
           "who reads our standard input: local rank 0, all workers, nobody, local rank N; auto: all on a terminal, so "
           "that a debugger works on any rank, else first"),
      repeatable(text("worker-limit", "NAME=VALUE,...", "", "DDPRUN_WORKER_LIMIT", "new: limits for the workers only",
                      "resource limits of each worker, as address-space=4G,nofile=65536; suffixes K M G T; unlimited")),
      text("signals-to-forward", "NAME,...", "SIGUSR1,SIGUSR2", "DDPRUN_SIGNALS_TO_FORWARD",
           "new: torchrun dies of them", "signals that are passed to the workers while the job goes on"),
      choice("signal-scope", {"worker", "group"}, "worker", "DDPRUN_SIGNAL_SCOPE",
             "new: as torchrun's, but its process group too when half of the patience is over",
             "who gets a passed-on signal and the first stop signal: the worker process alone, or its process group "
             "(data loaders, what a wrapper script has started) as well"),
      choice(
          "leftovers", {"end", "wait", "keep"}, "end", "DDPRUN_LEFTOVERS",
          "new: torchrun leaves behind what workers leave",
          "processes that ended workers leave: end (2 s to go by themselves, SIGTERM, SIGKILL 1.5 s later), wait (the "
          "job ends when they have ended; a stop signal ends them), keep (they are named and left running)"),
      text("restart-backoff", "SECONDS", "0", "DDPRUN_RESTART_BACKOFF", "new: pause before a restart",
           "pause before the first restart, doubled for each further one, at most 60 s"),
      integer("crash-loop-limit", "N", std::to_string(JobSettings().crash_loop_limit), "DDPRUN_CRASH_LOOP_LIMIT", 0,
              1e6, "new: stop hopeless restarts",
              fmt::format("end the job when N attempts in a row fail within {} s of their start; 0: never",
                          JobSettings().crash_loop_window.count() / 1000)),
      choice("exit-code", {"own", "torchrun"}, "own", "DDPRUN_EXIT_CODE", "new: meaningful exit codes",
             "own: the failed worker's code, 128 + signal, 69, 75, 78, 126, 127; torchrun: 0, 1 and 2 only"),
      text("report", "FILE", "", "DDPRUN_REPORT", "new: the last word as JSON",
           "write the final report as JSON; a second node on the same disk puts its host's name before the extension"),
      text("log-max-size", "SIZE", "0", "DDPRUN_LOG_MAX_SIZE", "new: rotation",
           "start a new file when a worker's log has this size (suffixes K M G); 0: never"),
      text("log-level", "LEVEL", "", "DDPRUN_LOG_LEVEL", "new: as LOGLEVEL for torchrun",
           "our own messages: debug, info, warning, error; default info, on a terminal with one node warning"),
      text("port-range", "FIRST-LAST", "", "DDPRUN_PORT_RANGE", "new: for firewalls",
           "choose ports in this range, as 20000-60000; default: the kernel chooses"),
      text("topology-key", "TEXT", "", "DDPRUN_TOPOLOGY_KEY", "new: rank order follows the network",
           "nodes with neighbouring keys (rack, switch) get neighbouring ranks"),
      text("network-interface", "NAME", "", "DDPRUN_NETWORK_INTERFACE", "new: one option for NCCL and Gloo",
           "network interface of the workers: sets NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; must exist"),
      flag("nccl-debug", "DDPRUN_NCCL_DEBUG", "new: preset", "NCCL_DEBUG=INFO for the workers"),
      text("nccl-debug-subsystems", "LIST", "", "DDPRUN_NCCL_DEBUG_SUBSYSTEMS", "new: preset",
           "NCCL_DEBUG_SUBSYS, as INIT,NET; turns --nccl-debug on"),
      text("nccl-algo", "NAME", "", "DDPRUN_NCCL_ALGO", "new: preset", "NCCL_ALGO for the workers, as Tree or Ring"),
      flag("nccl-shm-disable", "DDPRUN_NCCL_SHM_DISABLE", "new: preset", "NCCL_SHM_DISABLE=1 for the workers"),
      flag("cuda-launch-blocking", "DDPRUN_CUDA_LAUNCH_BLOCKING", "new: preset",
           "CUDA_LAUNCH_BLOCKING=1 for the workers: errors show at the call that made them"),
      choice("preflight", {"on", "off"}, "on", "DDPRUN_PREFLIGHT", "new: checks before the first worker",
             "check GPU count, log directory, limits, names and ports before the start"),
      short_name(
          text("hosts", "HOST[:N],...|auto", "", "DDPRUN_HOSTS", "new: a job over several hosts without srun or mpirun",
               "start the job on these hosts, N workers on each (else --nproc-per-node), by a remote shell; the "
               "first one serves the rendezvous; auto: the list of PBS, LSF or Grid Engine"),
          'H'),
      text("hostfile", "FILE", "", "DDPRUN_HOSTFILE", "new: as mpirun's and DeepSpeed's",
           "the list of hosts, a line each: NAME, NAME:N or NAME slots=N"),
      text("include", "HOST[:SLOT,...],...", "", "DDPRUN_INCLUDE", "new: as DeepSpeed's",
           "only these of the list; with slot numbers only these GPUs of a host; @ separates too"),
      text("exclude", "HOST[:SLOT,...],...", "", "DDPRUN_EXCLUDE", "new: as DeepSpeed's",
           "all of the list but these hosts, or but these GPUs of a host"),
      text("rsh", "COMMAND",
           "ssh -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=10 -o ServerAliveCountMax=3",
           "DDPRUN_RSH", "new: the remote shell", "remote shell for --hosts: gets the host and one more argument"),
      short_name(repeatable(text("pass-env", "NAME,...", "", "DDPRUN_PASS_ENV", "new: as mpirun's -x",
                                 "variables that every host of --hosts gets as they are here, NAME or BEGIN*, beside "
                                 "PATH, LD_LIBRARY_PATH and those of Python, torch, NCCL, OpenMP and ddprun")),
                 'x'),
      text("host-start-timeout", "SECONDS", "60", "DDPRUN_HOST_START_TIMEOUT", "new: for --hosts",
           "patience with a remote shell until a ddprun answers behind it"),
      text("host-silence", "SECONDS", "30", "DDPRUN_HOST_SILENCE", "new: for --hosts",
           "a host of which nothing is heard for so long is lost, and a host that hears nothing ends its part"),
      flag("help-markdown", "", "new: for the README", "print this list as a markdown table"),
  };
}

std::vector<OptionSpec> legacy_options() {
  return {
      flag("use-env", "", "same", "do not hand --local-rank to the script; it reads LOCAL_RANK"),
      choice("local-rank-style", {"auto", "hyphen", "underscore"}, "auto", "",
             "new: --local_rank for scripts that know only that",
             "spelling of the option that the script gets: auto looks into the script's text"),
  };
}

HelpLayout help_layout(const std::string& program, Flavour flavour) {
  HelpLayout layout;
  layout.examples = "  " + program + " train.py --lr 0.1                          one worker, as python train.py\n" +
                    "  " + program + " --nproc-per-node=gpu train.py              one worker per GPU of this host\n" +
                    "  " + program + " --nproc-per-node=8 --max-restarts=3 -m pkg.train\n" + "  " + program +
                    " -H node1,node2 --nproc-per-node=8 train.py several hosts, by ssh\n" + "  " + program +
                    " --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 --rdzv-id=job7 "
                    "train.py\n"
                    "      the same command on each of four hosts; --nnodes=2:4 trains on with two\n" +
                    (flavour == Flavour::launch
                         ? ""
                         : "  " + program + " --nproc-per-node=2 trainer --config train.yaml   ddprun's own trainer\n");
  layout.groups = {
      {"What is run", {"nproc-per-node", "module", "no-python", "env", "devices"}},
      {"Several hosts",
       {"nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "node-rank", "master-addr", "master-port", "hosts",
        "hostfile", "standalone"}},
      {"Failures", {"max-restarts", "restart-backoff", "shutdown-timeout", "report"}},
      {"Output", {"log-dir", "redirects", "tee", "log-level"}},
      {"Help", {"help", "help-all", "version", "print-completion"}},
  };
  return layout;
}

OptionTable make_table(Flavour flavour) {
  auto options = torchrun_options();
  for (auto& spec : own_options()) options.push_back(std::move(spec));
  if (flavour == Flavour::launch) {
    for (auto& spec : legacy_options()) options.push_back(std::move(spec));
  }
  const std::string program = flavour == Flavour::launch ? "ddprun-launch" : "ddprun";
  return OptionTable(program, program + " [options] program [arguments]", std::move(options), RestPolicy::script_args,
                     help_layout(program, flavour));
}

}  // namespace

const OptionTable& option_table(Flavour flavour) {
  static const OptionTable run = make_table(Flavour::run);
  static const OptionTable launch = make_table(Flavour::launch);
  return flavour == Flavour::launch ? launch : run;
}

std::string foreign_option_hint(const std::string& word) {
  std::string name = word.substr(0, word.find('='));
  name.erase(0, name.find_first_not_of('-'));
  std::replace(name.begin(), name.end(), '_', '-');
  const auto is = [&name](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is({"n", "np", "p", "ngpus", "gpus", "num-gpus", "num-processes", "num-proc", "ntasks", "ppn", "workers"})) {
    return "write --nproc-per-node=N for N workers on this node";
  }
  if (is({"N", "nodes", "num-nodes", "num-machines", "nnode"})) return "write --nnodes=N";
  if (is({"machine-rank", "node-id", "noderank"})) return "write --node-rank=N";
  if (is({"main-process-port", "port"})) return "write --master-port=PORT";
  if (is({"main-process-ip", "addr"})) return "write --master-addr=HOST";
  if (is({"host", "hostlist", "machinefile", "nodefile", "f"})) {
    return "write --hosts=a:2,b:2 or --hostfile=FILE; under srun or mpirun -N 1 no list is needed";
  }
  if (is({"launcher", "launcher-args", "ssh-port", "plm-rsh-agent"})) return "write --rsh='ssh -p 22' with --hosts";
  if (is({"use-env", "local-rank-style"}))
    return "that is an option of ddprun-launch; ddprun never passes --local-rank";
  if (is({"genv"})) return "write --env=NAME=VALUE";
  return "";
}

std::string completion_script(Flavour flavour, const std::string& shell) {
  const std::string program = flavour == Flavour::launch ? "ddprun-launch" : "ddprun";
  std::string words;
  for (const auto& spec : option_table(flavour).options()) words += (words.empty() ? "--" : " --") + spec.name;
  if (shell == "tcsh") return "complete " + program + " 'c/--/(" + words + ")/' 'p/*/f/'\n";
  std::string out;
  if (shell == "zsh") out += "autoload -Uz bashcompinit && bashcompinit\n";
  out += "complete -o default -W '" + words + "' " + program + "\n";
  return out;
}

}  // namespace ddprun::launcher
