#include "launcher/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "launcher/options/option_values.h"
#include "launcher/options/rdzv_conf.h"

namespace ddprun::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

using Environment = std::map<std::string, std::string>;

struct Host {
  std::int64_t cpus = 6;
  std::optional<std::int64_t> gpus;
};

HostFacts facts(const Host& host) {
  HostFacts out;
  out.cpu_count = [host] { return host.cpus; };
  out.gpu_count = [host]() -> Result<std::int64_t> {
    if (!host.gpus) return Error(Errc::not_found, "there is no driver");
    return *host.gpus;
  };
  return out;
}

Result<LaunchOptions> options_of(const std::vector<std::string>& arguments, const Environment& environment = {},
                                 Flavour flavour = Flavour::run, const Host& host = {}) {
  const EnvLookup env = [environment](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  };
  auto parsed = option_table(flavour).parse(arguments, env);
  if (!parsed) return std::move(parsed).error();
  HostFacts given = facts(host);
  for (const auto& [name, value] : environment) given.variables.push_back(name);
  return make_launch_options(*parsed, flavour, env, given);
}

LaunchOptions good(const std::vector<std::string>& arguments, const Environment& environment = {},
                   Flavour flavour = Flavour::run, const Host& host = {}) {
  auto options = options_of(arguments, environment, flavour, host);
  EXPECT_TRUE(options.has_value()) << (options ? "" : options.error().message());
  return options ? *options : LaunchOptions{};
}

std::string problem(const std::vector<std::string>& arguments, const Environment& environment = {},
                    Flavour flavour = Flavour::run, const Host& host = {}) {
  auto options = options_of(arguments, environment, flavour, host);
  if (options) return "(accepted)";
  EXPECT_EQ(options.error().code(), Errc::invalid_argument);
  return options.error().message();
}

TEST(LaunchOptions, TheUsualLineWithUnderscores) {
  const auto options =
      good({"--nnodes=1", "--nproc_per_node=8", "--max_restarts=3", "--rdzv_id=123456", "--rdzv_backend=c10d",
            "--rdzv_endpoint=localhost:29500", "train.py", "--cfg", "configs/exp001.yaml"});
  EXPECT_EQ(options.job.nnodes_min, 1);
  EXPECT_EQ(options.node.nproc, 8);
  EXPECT_EQ(options.job.max_restarts, 3);
  EXPECT_EQ(options.rdzv.run_id.value, "123456");
  EXPECT_EQ(options.job.backend, RdzvBackend::c10d);
  EXPECT_EQ(options.rdzv.endpoint, (Endpoint{"localhost", 29500}));
  EXPECT_TRUE(options.rdzv.local_job);
  EXPECT_EQ(options.program.name, "train.py");
  EXPECT_THAT(options.program.arguments, ElementsAre("--cfg", "configs/exp001.yaml"));
  EXPECT_THAT(options.warnings, IsEmpty());
}

TEST(LaunchOptions, VariablesOfTorchWithoutEffectAreNamed) {
  EXPECT_THAT(good({"x.py"}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}}).warnings,
              ElementsAre(HasSubstr("TORCHELASTIC_ENABLE_FILE_TIMER has no effect on this launcher: it has no file")));
  EXPECT_THAT(good({"x.py"}, {{"TORCHELASTIC_HEALTH_CHECK_PORT", "8080"}}).warnings,
              ElementsAre(HasSubstr("ddpctl status")));
  EXPECT_THAT(good({"x.py"}, {{"TORCHELASTIC_ERORR_FILE", "a"}}).warnings,
              ElementsAre(HasSubstr("did you mean TORCHELASTIC_ERROR_FILE?")));
  // Of an outer launcher, or ours.
  EXPECT_THAT(good({"x.py"}, {{"TORCHELASTIC_RUN_ID", "a"},
                              {"TORCHELASTIC_RESTART_COUNT", "3"},
                              {"TORCHELASTIC_ERROR_FILE", "/tmp/e"},
                              {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM"},
                              {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "x"}})
                  .warnings,
              IsEmpty());
}

TEST(LaunchOptions, CarriageReturnsAreNotTaken) {
  EXPECT_THAT(problem({"--nproc-per-node=2\r", "x.py"}), HasSubstr("ends in a carriage return"));
  EXPECT_THAT(problem({"--rdzv-id=job\r", "x.py"}), HasSubstr("--rdzv-id: 'job\r' ends in a carriage return"));
  EXPECT_THAT(problem({"x.py"}, {{"PET_RDZV_ID", "job\r"}}), HasSubstr("PET_RDZV_ID"));
  EXPECT_THAT(problem({"-m", "pkg\r"}), HasSubstr("--module"));
  EXPECT_THAT(good({"x.py", "--lr", "0.1\r"}).warnings, ElementsAre(HasSubstr("last argument, '0.1\\r'")));
}

TEST(LaunchOptions, TheUsualLegacyLine) {
  const auto options = good({"--nproc_per_node=4", "--master_port=29500", "train.py"}, {}, Flavour::launch);
  EXPECT_EQ(options.node.nproc, 4);
  EXPECT_EQ(options.job.backend, RdzvBackend::static_ranks);
  EXPECT_EQ(options.rdzv.endpoint, (Endpoint{"127.0.0.1", 29500}));
  EXPECT_EQ(options.node.rank, 0);
  EXPECT_TRUE(options.rdzv.local_job);
  EXPECT_EQ(options.program.local_rank_argument, LocalRankArgument::by_script);
}

TEST(LaunchOptions, NothingButAScriptIsALocalJobOnAFreePort) {
  const auto options = good({"train.py"});
  EXPECT_EQ(options.job.backend, RdzvBackend::c10d);
  EXPECT_EQ(options.rdzv.endpoint.port, 0);
  EXPECT_TRUE(options.rdzv.local_job);
  EXPECT_EQ(options.node.nproc, 1);
  EXPECT_EQ(options.rdzv.run_id.value.size(), 36u);
  EXPECT_NE(options.rdzv.run_id.value, good({"train.py"}).rdzv.run_id.value);
  EXPECT_EQ(good({"--rdzv-id=job7", "train.py"}).rdzv.run_id.value, "job7");
}

TEST(LaunchOptions, StandaloneWinsOverRendezvousOptions) {
  const auto options = good({"--standalone", "--rdzv-backend=c10d", "--rdzv-endpoint=far:1", "train.py"});
  EXPECT_EQ(options.rdzv.endpoint, (Endpoint{"127.0.0.1", 0}));
  EXPECT_THAT(options.warnings, ElementsAre(HasSubstr("--rdzv-endpoint is not used")));
  EXPECT_THAT(problem({"--standalone", "--nnodes=2", "train.py"}), HasSubstr("--standalone is a job of one node"));
  EXPECT_EQ(good({"--standalone", "--nnodes=1:3", "train.py"}).job.nnodes_max, 1);
  EXPECT_THAT(good({"--local-addr=10.0.0.1", "--node-rank=1", "x"}).warnings,
              ElementsAre(HasSubstr("--local-addr is not used"), HasSubstr("--node-rank=1 is not used")));
  EXPECT_THAT(good({"x"}, {{"PET_NODE_RANK", "0"}}).warnings, IsEmpty());
}

TEST(Options, ALoopbackEndpointIsLocalForOneNodeOnly) {
  for (const char* nnodes : {"--nnodes=2", "--nnodes=1:2"}) {
    EXPECT_FALSE(good({nnodes, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400", "x"}).rdzv.local_job)
        << nnodes;
  }
  EXPECT_TRUE(good({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400", "x"}).rdzv.local_job);
}

TEST(Options, AMasterAddressIsAHostAlone) {
  EXPECT_EQ(good({"--nnodes=2", "--master-addr=2001:db8::5:8080", "x"}).rdzv.endpoint,
            (Endpoint{"2001:db8::5:8080", 29500}));
  EXPECT_EQ(good({"--nnodes=2", "--rdzv-endpoint=2001:db8::5:8080", "x"}).rdzv.endpoint,
            (Endpoint{"2001:db8::5", 8080}));
}

TEST(Options, ADefaultEndpointIsNotForTheOtherNodes) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"--nnodes=2", "--node-rank=1", "x"},
                                                                 {"--nnodes=2", "--rdzv-backend=c10d", "x"}}) {
    EXPECT_THAT(problem(words), AllOf(HasSubstr("the default, "), HasSubstr("which is this host")));
  }
  good({"--nnodes=2", "--node-rank=0", "x"});  // it serves, and the others are told of it by a name that they know
  good({"--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "x"});  // several nodes on one host, on purpose
  good({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-conf=is_host=1", "x"});
  good({"--nnodes=1:2", "--rdzv-backend=c10d", "x"});
}

TEST(LaunchOptions, WhichRendezvousACommandGets) {
  auto options = good({"--nnodes=2", "x"});
  EXPECT_EQ(options.job.backend, RdzvBackend::static_ranks);
  EXPECT_EQ(options.rdzv.endpoint, (Endpoint{"127.0.0.1", 29500}));
  EXPECT_FALSE(options.rdzv.local_job);
  EXPECT_EQ(options.job.nnodes_min, 2);
  EXPECT_EQ(options.job.join_timeout, std::chrono::seconds(900));

  options = good({"--nnodes=2", "--master-addr=node1", "--master-port=7000", "--node-rank=1", "x"});
  EXPECT_EQ(options.rdzv.endpoint, (Endpoint{"node1", 7000}));
  EXPECT_EQ(options.node.rank, 1);

  options = good({"--nnodes=1:4", "--rdzv-backend=c10d", "x"});
  EXPECT_EQ(options.rdzv.endpoint, (Endpoint{"localhost", 29400}));
  EXPECT_EQ(options.job.nnodes_min, 1);
  EXPECT_EQ(options.job.nnodes_max, 4);
  EXPECT_EQ(options.node.rank, std::nullopt);

  options = good({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=[fd00::1]:77", "--node-rank=1", "x"});
  EXPECT_EQ(options.rdzv.endpoint, (Endpoint{"fd00::1", 77}));
  EXPECT_EQ(options.node.rank, 1);
  EXPECT_FALSE(options.rdzv.local_job);

  options = good({"--rdzv-endpoint=10.0.0.1:5", "x"});
  EXPECT_EQ(options.job.backend, RdzvBackend::static_ranks);
  EXPECT_FALSE(options.rdzv.local_job);

  EXPECT_THAT(problem({"--nnodes=2", "--rdzv-endpoint=node1", "x"}), HasSubstr("has no port"));
  options = good({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=j", "x"});
  EXPECT_EQ(options.rdzv.endpoint.port, 0);
  EXPECT_TRUE(options.rdzv.local_job);
  EXPECT_EQ(options.rdzv.run_id.value, "j");
  EXPECT_THAT(problem({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "x"}),
              HasSubstr("--rdzv-endpoint: port 0"));

  EXPECT_THAT(problem({"--rdzv-backend=etcd", "x"}), HasSubstr("--rdzv-backend: 'etcd' needs etcd's v2 API"));
  EXPECT_THAT(problem({"--rdzv-backend=foo", "x"}), HasSubstr("there is no rendezvous backend 'foo'"));
  EXPECT_THAT(problem({"--nnodes=2", "--node-rank=2", "x"}), HasSubstr("--node-rank: 2 does not fit 2 nodes"));
}

TEST(LaunchOptions, Nnodes) {
  for (const char* text : {"0", "3:2", "1:2:3", "a", ":", "1:", "-1"}) {
    EXPECT_THAT(problem({"--nnodes=" + std::string(text), "x"}), HasSubstr("--nnodes: ")) << text;
  }
}

TEST(LaunchOptions, NprocPerNode) {
  const Host none{6, std::nullopt}, zero{6, 0}, four{6, 4};
  EXPECT_EQ(good({"--nproc-per-node=cpu", "x"}, {}, Flavour::run, four).node.nproc, 6);
  EXPECT_EQ(good({"--nproc-per-node=gpu", "x"}, {}, Flavour::run, four).node.nproc, 4);
  EXPECT_EQ(good({"--nproc-per-node=auto", "x"}, {}, Flavour::run, four).node.nproc, 4);
  EXPECT_EQ(good({"--nproc-per-node=auto", "x"}, {}, Flavour::run, zero).node.nproc, 6);
  EXPECT_EQ(good({"--nproc-per-node=auto", "x"}, {}, Flavour::run, none).node.nproc, 6);
  EXPECT_EQ(good({"--nproc-per-node=gpu", "--devices=0,2,3", "x"}, {}, Flavour::run, none).node.nproc, 3);
  EXPECT_THAT(problem({"--nproc-per-node=gpu", "x"}, {}, Flavour::run, none), HasSubstr("there is no driver"));
  EXPECT_THAT(problem({"--nproc-per-node=gpu", "x"}, {}, Flavour::run, zero), HasSubstr("there is none on this host"));
  EXPECT_THAT(problem({"--nproc-per-node=xpu", "x"}), HasSubstr("only NVIDIA GPUs"));
  // CUDA shows a process one MIG instance: N workers need lists of their own.
  const Environment mig{{"CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2"}};
  const Host two{6, 2};
  for (const char* word : {"--nproc-per-node=gpu", "--nproc-per-node=auto"}) {
    EXPECT_THAT(
        problem({word, "x"}, mig, Flavour::run, two),
        HasSubstr("2 MIG instances are listed in CUDA_VISIBLE_DEVICES, but CUDA shows a process only one of them. "
                  "Add --virtual-local-rank"));
    EXPECT_EQ(good({word, "--virtual-local-rank", "x"}, mig, Flavour::run, two).node.nproc, 2);
  }
  EXPECT_THAT(problem({"--nproc-per-node=gpu", "--devices=MIG-1,MIG-2,MIG-3", "x"}, {}, Flavour::run, two),
              HasSubstr("3 MIG instances are listed in --devices"));
  EXPECT_EQ(
      good({"--nproc-per-node=gpu", "x"}, {{"CUDA_VISIBLE_DEVICES", "MIG-1"}}, Flavour::run, Host{6, 1}).node.nproc, 1);
  EXPECT_EQ(good({"--nproc-per-node=auto", "x"}, mig, Flavour::run, none).node.nproc, 6);
  EXPECT_THAT(problem({"--nproc-per-node=0", "x"}), HasSubstr("0 is not in 1..100000"));
  EXPECT_THAT(problem({"--nproc-per-node=many", "x"}), HasSubstr("'many' is none of N, gpu, cpu and auto"));
}

TEST(LaunchOptions, VariablesAreDefaultsAndEmptyOnesAreUnset) {
  const Environment environment{{"PET_NPROC_PER_NODE", "2"},
                                {"PET_MAX_RESTARTS", ""},
                                {"PET_STANDALONE", "1"},
                                {"PET_NO_PYTHON", "1"},
                                {"PET_NNODES", ""}};
  const auto options = good({"x"}, environment);
  EXPECT_EQ(options.node.nproc, 2);
  EXPECT_EQ(options.job.max_restarts, 0);
  EXPECT_TRUE(options.program.no_python);
  EXPECT_EQ(good({"--nproc-per-node=1", "x"}, environment).node.nproc, 1);
  EXPECT_THAT(problem({"x"}, {{"PET_NNODES", "9:1"}}), HasSubstr("PET_NNODES: "));
}

TEST(LaunchOptions, AbbreviationsThatAreUniqueInTorchrunStayUnique) {
  EXPECT_EQ(good({"--redirect=3", "x"}).output.redirects.of(LocalRank(5)), 3);
  EXPECT_EQ(good({"--re=1", "x"}).output.redirects.of(LocalRank(0)), 1);  // we also have --report, --restart-backoff
  EXPECT_TRUE(good({"--stand", "x"}).rdzv.local_job);
  EXPECT_EQ(good({"--nproc=3", "x"}).node.nproc, 3);
  EXPECT_EQ(good({"--nproc_per=3", "x"}).node.nproc, 3);
  EXPECT_THAT(problem({"--lo=3", "x"}), HasSubstr("ambiguous"));
}

TEST(LaunchOptions, StreamMaps) {
  const auto options = good({"--redirects=0:3,12:1", "-t", "2", "x"});
  EXPECT_EQ(options.output.redirects.of(LocalRank(0)), 3);
  EXPECT_EQ(options.output.redirects.of(LocalRank(12)), 1);
  EXPECT_EQ(options.output.redirects.of(LocalRank(1)), 0);
  EXPECT_EQ(options.output.tee.of(LocalRank(7)), 2);
  for (const char* text : {"4", "0:4", "a:1", "1:", "0:1,2", "-1", ""}) {
    EXPECT_THAT(problem({"--redirects=" + std::string(text), "x"}), HasSubstr("--redirects: ")) << text;
  }
}

// The README's table is the one of the code; DDPRUN_REWRITE=1 writes it.
TEST(LaunchOptions, ReadmeHasTheKeysOfRdzvConf) {
  const std::string path = DDPRUN_SOURCE_DIR "/launcher/README.md";
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::string begin = "<!-- rdzv-conf: begin -->\n", end = "<!-- rdzv-conf: end -->";
  const auto first = text.find(begin), last = text.find(end);
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(last, std::string::npos);
  const auto start = first + begin.size();
  if (text.substr(start, last - start) != rdzv_conf_markdown() && std::getenv("DDPRUN_REWRITE") != nullptr) {
    text.replace(start, last - start, rdzv_conf_markdown());
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text.substr(start, last - start), rdzv_conf_markdown()) << "run it with DDPRUN_REWRITE=1, review the diff";
}

TEST(LaunchOptions, RdzvConf) {
  const auto options = good({"--rdzv-backend=c10d", "--rdzv-conf",
                             "join_timeout=5, last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=7,"
                             "is_host=Yes,on_silence=keep,read_timeout=9,close_timeout=4",
                             "x"});
  EXPECT_EQ(options.job.join_timeout, std::chrono::seconds(5));
  EXPECT_EQ(options.job.last_call_timeout, std::chrono::seconds(1));
  EXPECT_EQ(options.job.close_timeout, std::chrono::seconds(4));
  EXPECT_EQ(options.rdzv.conf.read_timeout, std::chrono::seconds(9));
  EXPECT_EQ(options.job.keep_alive_interval, std::chrono::seconds(2));
  EXPECT_EQ(options.job.keep_alive_max_attempt, 7);
  EXPECT_EQ(options.rdzv.conf.is_host, true);
  EXPECT_TRUE(options.rdzv.conf.keep_on_silence);
  EXPECT_THAT(options.warnings, IsEmpty());
  EXPECT_THAT(good({"--rdzv-conf=jion_timeout=5", "x"}).warnings,
              ElementsAre("--rdzv-conf: unknown key 'jion_timeout' is not used (did you mean join_timeout?)"));
  // An upstream test hands over literal quotes.
  EXPECT_EQ(
      good({"--rdzv-backend=c10d", "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'", "x"}).warnings.size(),
      2u);
  EXPECT_EQ(good({"--nnodes=2", "--rdzv-conf=timeout=33", "x"}).job.join_timeout, std::chrono::seconds(33));
  for (const char* text :
       {"join_timeout=0", "join_timeout=a", "join_timeout=", "=3", "join_timeout", "is_host=maybe", "on_silence=die",
        "store_type=file", "keep_alive_max_attempt=0", "keep_alive_max_attempt=1001", "last_call_timeout=1.5"}) {
    EXPECT_THAT(problem({"--rdzv-conf=" + std::string(text), "x"}), HasSubstr("--rdzv-conf: ")) << text;
  }
}

TEST(LaunchOptions, Signals) {
  auto options = good({"x"});
  EXPECT_THAT(options.supervision.signals_to_handle, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(options.supervision.signals_to_forward, ElementsAre(SIGUSR1, SIGUSR2));
  options = good({"--signals-to-handle=SIGTERM,usr1,SIGBOGUS", "x"});
  EXPECT_THAT(options.supervision.signals_to_handle, ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_THAT(options.supervision.signals_to_forward, ElementsAre(SIGUSR2));
  EXPECT_THAT(options.warnings, ElementsAre(HasSubstr("there is no signal 'SIGBOGUS'")));
  EXPECT_THAT(good({"--signals-to-forward=WINCH,12", "x"}).supervision.signals_to_forward,
              ElementsAre(SIGWINCH, SIGUSR2));
  EXPECT_THAT(problem({"--signals-to-handle=SIGKILL", "x"}), HasSubstr("cannot be caught"));
  EXPECT_THAT(problem({"--signals-to-forward=SIGTERM", "x"}), HasSubstr("stands in --signals-to-handle too"));
}

TEST(LaunchOptions, WorkerEnvironmentAndPresets) {
  const auto options = good({"--env", "A=1", "--env=B=x=y", "--nccl-debug", "--nccl-algo=Tree", "--nccl-shm-disable",
                             "--cuda-launch-blocking", "--network-interface=lo", "x"});
  EXPECT_THAT(options.workers.environment,
              ElementsAre(Pair("NCCL_DEBUG", "INFO"), Pair("NCCL_ALGO", "Tree"), Pair("NCCL_SHM_DISABLE", "1"),
                          Pair("CUDA_LAUNCH_BLOCKING", "1"), Pair("NCCL_SOCKET_IFNAME", "lo"),
                          Pair("GLOO_SOCKET_IFNAME", "lo"), Pair("A", "1"), Pair("B", "x=y")));
  EXPECT_THAT(good({"--nccl-debug-subsystems=INIT,NET", "x"}).workers.environment,
              ElementsAre(Pair("NCCL_DEBUG", "INFO"), Pair("NCCL_DEBUG_SUBSYS", "INIT,NET")));
  EXPECT_THAT(problem({"--env=RANK=3", "x"}), HasSubstr("RANK is set by ddprun"));
  EXPECT_THAT(problem({"--env=MASTER_PORT=3", "x"}), HasSubstr("MASTER_PORT is set by ddprun"));
  EXPECT_THAT(problem({"--env=novalue", "x"}), HasSubstr("is not NAME=VALUE"));
}

TEST(LaunchOptions, WorkerLimits) {
  EXPECT_THAT(
      good({"--worker-limit=address-space=4G,nofile=1024", "--worker-limit", "core=unlimited", "x"}).workers.limits,
      ElementsAre(Pair(RLIMIT_AS, 4ULL << 30), Pair(RLIMIT_NOFILE, 1024), Pair(RLIMIT_CORE, RLIM_INFINITY)));
  for (const char* text : {"nofile", "nofile=", "nofile=-1", "nofile=1.5", "files=3", "address-space=99999999999T"}) {
    EXPECT_THAT(problem({"--worker-limit=" + std::string(text), "x"}), HasSubstr("--worker-limit: ")) << text;
  }
}

TEST(LaunchOptions, TimesAndLimitsOfTheSupervision) {
  const auto options = good({"--shutdown-timeout=2", "--restart-backoff=0.5", "--crash-loop-limit=4",
                             "--exit-code=torchrun", "--log-max-size=64K", "--port-range=20000-20010", "x"});
  EXPECT_EQ(options.supervision.shutdown_timeout.count(), 2000);
  EXPECT_EQ(options.supervision.restart_backoff.count(), 500);
  EXPECT_EQ(options.job.crash_loop_limit, 4);
  EXPECT_TRUE(options.supervision.torchrun_exit_codes);
  EXPECT_EQ(options.output.log_max_size_bytes, 65536u);
  EXPECT_EQ(options.node.ports.first, 20000);
  EXPECT_EQ(options.node.ports.last, 20010);
  EXPECT_EQ(good({"x"}).supervision.shutdown_timeout.count(), 30'000);
  EXPECT_EQ(good({"x"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}}).supervision.shutdown_timeout.count(), 7000);
  EXPECT_EQ(good({"--shutdown-timeout=0", "x"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}})
                .supervision.shutdown_timeout.count(),
            0);
  EXPECT_THAT(problem({"--restart-backoff=-1", "x"}), HasSubstr("--restart-backoff: "));
  EXPECT_THAT(problem({"--port-range=9-3", "x"}), HasSubstr("--port-range: "));
  EXPECT_THAT(problem({"--log-max-size=big", "x"}), HasSubstr("--log-max-size: "));
  EXPECT_THAT(problem({"--max-restarts=-1", "x"}), HasSubstr("max-restarts"));
  EXPECT_THAT(problem({"--monitor-interval=0", "x"}), HasSubstr("--monitor-interval: "));
  EXPECT_THAT(good({"--monitor-interval=5", "x"}).notes, ElementsAre(HasSubstr("not needed")));
}

TEST(LaunchOptions, WhatIsRefused) {
  EXPECT_THAT(problem({"--logs-specs=mine", "x"}), HasSubstr("names a Python plug-in"));
  EXPECT_THAT(problem({"--start-method=fork", "x"}), HasSubstr("'fork' is not supported"));
  EXPECT_THAT(problem({"--module", "--no-python", "x"}), HasSubstr("give one of them"));
  EXPECT_THAT(problem({}), HasSubstr("no program is given"));
  EXPECT_THAT(problem({"--no-python", "x"}, {}, Flavour::launch), HasSubstr("--use-env"));
  EXPECT_THAT(problem({"--nproc-per-nod=2", "--bogus", "x"}), HasSubstr("--bogus"));
}

TEST(LaunchOptions, LegacyLocalRank) {
  using Argument = LocalRankArgument;
  EXPECT_EQ(good({"x"}, {}, Flavour::launch).program.local_rank_argument, Argument::by_script);
  EXPECT_EQ(good({"--use_env", "x"}, {}, Flavour::launch).program.local_rank_argument, Argument::none);
  EXPECT_EQ(good({"--local-rank-style=underscore", "x"}, {}, Flavour::launch).program.local_rank_argument,
            Argument::underscore);
  EXPECT_EQ(good({"x"}).program.local_rank_argument, Argument::none);
  EXPECT_THAT(problem({"--use-env", "x"}), HasSubstr("--use-env"));  // not an option of ddprun itself
}

TEST(LaunchOptions, FiltersThatSeeNothingAreSaid) {
  EXPECT_THAT(good({"--duplicate-stdout-filters=a,b,,c", "--tee=1", "x"}).output.duplicate_stdout_filters,
              ElementsAre("a", "b,c"));
  EXPECT_THAT(good({"--duplicate-stderr-filters=a", "--tee=1", "x"}).warnings,
              ElementsAre(HasSubstr("no worker's stderr is tee'd")));
  EXPECT_THAT(*good({"--local-ranks-filter=0,3", "x"}).output.console_ranks, ElementsAre(0, 3));
  EXPECT_THAT(problem({"--local-ranks-filter=a", "x"}), HasSubstr("'a' is not a local rank"));
}

TEST(LaunchOptions, LogLevel) {
  EXPECT_EQ(good({"x"}).logs.level, LogLevel::info);
  EXPECT_FALSE(good({"x"}).logs.level_given);
  EXPECT_TRUE(good({"--log-level=info", "x"}).logs.level_given);
  EXPECT_EQ(good({"x"}, {{"LOGLEVEL", "WARNING"}}).logs.level, LogLevel::warning);
  EXPECT_EQ(good({"--log-level=debug", "x"}, {{"LOGLEVEL", "WARNING"}}).logs.level, LogLevel::debug);
  EXPECT_THAT(problem({"--log-level=loud", "x"}), HasSubstr("'loud' is none of"));
}

TEST(LaunchOptions, EveryOptionHasHelpAndACompatibilityNote) {
  for (const auto flavour : {Flavour::run, Flavour::launch}) {
    for (const auto& spec : option_table(flavour).options()) {
      EXPECT_FALSE(spec.help.empty()) << spec.name;
      const std::string word = spec.compatibility.substr(0, spec.compatibility.find(':'));
      EXPECT_THAT(word, testing::AnyOf("same", "better", "new", "refused")) << spec.name;
      const bool says_how = word == "same" || spec.compatibility.size() > word.size() + 2;
      EXPECT_TRUE(says_how) << spec.name;
    }
  }
}

TEST(LaunchOptions, OptionsOfOtherLaunchersGetAHint) {
  for (const char* word : {"-np", "-n", "--num_gpus=4", "--num_processes", "--gpus"}) {
    EXPECT_THAT(foreign_option_hint(word), HasSubstr("--nproc-per-node")) << word;
    EXPECT_THAT(problem({word, "4", "x"}), HasSubstr("unknown option")) << word;
  }
  EXPECT_THAT(foreign_option_hint("--machinefile"), HasSubstr("--hostfile=FILE"));
  EXPECT_THAT(foreign_option_hint("--use_env"), HasSubstr("ddprun-launch"));
  EXPECT_EQ(foreign_option_hint("--bogus"), "");
}

TEST(LaunchOptions, CompletionNamesEveryOption) {
  for (const char* shell : {"bash", "zsh", "tcsh"}) {
    const auto script = completion_script(Flavour::run, shell);
    for (const auto& spec : option_table(Flavour::run).options()) EXPECT_THAT(script, HasSubstr("--" + spec.name));
  }
}

TEST(LaunchOptions, StandardInput) {
  using Source = StdinPolicy::Source;
  const auto given_to = [](const StdinPolicy& policy, Source source) {
    std::vector<int> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      if (policy.gives(LocalRank(rank), source)) ranks.push_back(rank);
    }
    return ranks;
  };
  using Ranks = std::vector<int>;
  const auto policy = [](const char* text) { return good({"--nproc-per-node=3", text, "x"}).workers.stdin_policy; };
  const StdinPolicy automatic = good({"--nproc-per-node=3", "x"}).workers.stdin_policy;
  EXPECT_EQ(given_to(automatic, Source::terminal), (Ranks{0, 1, 2}));
  EXPECT_EQ(given_to(automatic, Source::background_terminal), Ranks{});
  EXPECT_EQ(given_to(automatic, Source::other), Ranks{0});
  EXPECT_EQ(given_to(policy("--stdin=auto"), Source::other), Ranks{0});
  EXPECT_EQ(given_to(policy("--stdin=first"), Source::terminal), Ranks{0});
  EXPECT_EQ(given_to(policy("--stdin=all"), Source::other), (Ranks{0, 1, 2}));
  EXPECT_EQ(given_to(policy("--stdin=none"), Source::terminal), Ranks{});
  EXPECT_EQ(given_to(policy("--stdin=2"), Source::other), Ranks{2});
  EXPECT_THAT(problem({"--nproc-per-node=3", "--stdin=3", "x"}), HasSubstr("there is no local rank 3"));
  EXPECT_THAT(problem({"--stdin=1x", "x"}), HasSubstr("'1x' is none of auto, first, all, none, a local rank"));
}

}  // namespace
}  // namespace ddprun::launcher
