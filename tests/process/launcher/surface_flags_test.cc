#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/support/surface_flags.h"
#include "tests/support/surface_held_port.h"
#include "tests/support/surface_run.h"

// Flags about nodes and the rendezvous, the program, the report; and that every flag has a test.
namespace {

using ddprun::testing::Flags;
using ddprun::testing::HeldPort;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST_F(Flags, NprocPerNodeAndStandalone) {
  const auto run = sh({"--standalone", "--nproc-per-node=3"},
                      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR "
                      "$TORCHELASTIC_USE_AGENT_STORE");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.lines(),
              ElementsAre("0 0 3 3 0 1 127.0.0.1 True", "1 1 3 3 0 1 127.0.0.1 True", "2 2 3 3 0 1 127.0.0.1 True"));
  refused({"--nproc-per-node=0"}, "--nproc-per-node");
  refused({"--standalone", "--nnodes=2"}, "--standalone is a job of one node");
}

TEST_F(Flags, NprocPerNodeGpuAutoCpu) {
  const std::string count = "test $RANK = 0 && echo $WORLD_SIZE $CUDA_VISIBLE_DEVICES";
  runner.environment["LD_LIBRARY_PATH"] = std::string(DDPRUN_BINARY_DIR) + "/tests/fake_nvml";
  runner.environment["FAKE_NVML_GPUS"] = "3";
  EXPECT_THAT(sh({"--nproc-per-node=gpu"}, count + " || true").lines(), ElementsAre("3"));
  EXPECT_THAT(sh({"--nproc-per-node=auto"}, count + " || true").lines(), ElementsAre("3"));
  EXPECT_THAT(sh({"--nproc-per-node=gpu", "--devices=0,2"}, count + " || true").lines(), ElementsAre("2 0,2"));
  refused({"--devices=0,5"}, "--devices: there is no GPU 5");
  runner.environment["CUDA_VISIBLE_DEVICES"] = "1";
  EXPECT_THAT(sh({"--nproc-per-node=gpu"}, count + " || true").lines(), ElementsAre("1 1"));
  runner.environment["CUDA_VISIBLE_DEVICES"] = "";
  refused({"--nproc-per-node=gpu"}, "CUDA_VISIBLE_DEVICES='' hides all 3");
  runner.environment["FAKE_NVML_ERROR"] = "9";
  refused({"--nproc-per-node=gpu"}, "nvmlInit: Driver Not Loaded");
  runner.environment["FAKE_NVML_GPUS"] = "0";
  runner.environment.erase("FAKE_NVML_ERROR");
  const auto cpus = sh({"--nproc-per-node=cpu"}, count + " || true").out;
  EXPECT_EQ(cpus, sh({"--nproc-per-node=auto"}, count + " || true").out);
  EXPECT_EQ(cpus, std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) + "\n");
}

TEST_F(Flags, MoreWorkersThanGpusIsSaidUnlessPreflightIsOff) {
  runner.environment["LD_LIBRARY_PATH"] = std::string(DDPRUN_BINARY_DIR) + "/tests/fake_nvml";
  runner.environment["FAKE_NVML_GPUS"] = "1";
  EXPECT_THAT(sh({"--nproc-per-node=2"}, "true").err, HasSubstr("2 workers, but 1 of this host's 1 GPUs"));
  EXPECT_THAT(sh({"--nproc-per-node=2", "--preflight=off"}, "true").err, Not(HasSubstr("GPUs")));
}

TEST_F(Flags, NnodesRdzvBackendEndpointIdConf) {
  HeldPort port;
  const std::string endpoint = "--rdzv-endpoint=127.0.0.1:" + std::to_string(port.release());
  const std::vector<std::string> common{"ddprun",
                                        "--nnodes=2",
                                        "--rdzv-backend=c10d",
                                        endpoint,
                                        "--rdzv-id=job7",
                                        "--no-python",
                                        "sh",
                                        "-c",
                                        "echo $RANK $GROUP_RANK $GROUP_WORLD_SIZE $WORLD_SIZE $TORCHELASTIC_RUN_ID"};
  auto first = runner.start(common);
  auto second = runner.start(common);
  const auto one = first.wait(), two = second.wait();
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(two.code, 0) << two.err;
  std::vector<std::string> lines{one.out, two.out};
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines, ElementsAre("0 0 2 2 job7\n", "1 1 2 2 job7\n"));

  const auto alone = sh({"--nnodes=2", "--rdzv-backend=c10d", endpoint, "--rdzv-conf=join_timeout=1,jion=3"}, "true");
  EXPECT_EQ(alone.code, 69) << alone.err;
  EXPECT_THAT(alone.err, AllOf(HasSubstr("unknown key 'jion'"), HasSubstr("1 of")));
  refused({"--rdzv-conf=join_timeout=0"}, "--rdzv-conf: join_timeout");
  refused({"--nnodes=3:2"}, "--nnodes: the minimum 3 is above the maximum 2");
  refused({"--rdzv-backend=etcd"}, "etcd's v2 API");
}

TEST_F(Flags, ElasticRangeStartsWithTheMinimumAfterTheLastCall) {
  HeldPort port;
  const auto run = sh({"--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-conf=last_call_timeout=1",
                       "--rdzv-endpoint=127.0.0.1:" + std::to_string(port.release())},
                      "echo $GROUP_WORLD_SIZE");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "1\n");
  EXPECT_GE(run.lasted.count(), 900);
}

TEST_F(Flags, StaticNodeRankMasterAddrMasterPort) {
  HeldPort port;
  const std::string number = std::to_string(port.release());
  const auto node = [&](const std::string& rank) {
    return runner.start({"ddprun", "--nnodes=2", "--master-addr=127.0.0.1", "--master-port=" + number,
                         "--node-rank=" + rank, "--nproc-per-node=2", "--no-python", "sh", "-c",
                         "echo $RANK $GROUP_RANK $MASTER_ADDR $MASTER_PORT"});
  };
  auto late = node("1");
  auto zero = node("0");
  const auto one = late.wait(), two = zero.wait();
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.lines(), ElementsAre("0 0 127.0.0.1 " + number, "1 0 127.0.0.1 " + number));
  EXPECT_THAT(one.lines(), ElementsAre("2 1 127.0.0.1 " + number, "3 1 127.0.0.1 " + number));
  refused({"--nnodes=2", "--node-rank=2"}, "--node-rank: 2 does not fit 2 nodes");
}

TEST_F(Flags, NodeRankIsAHintAndTopologyKeyGroupsNodes) {
  HeldPort port;
  const std::string endpoint = "--rdzv-endpoint=127.0.0.1:" + std::to_string(port.release());
  const auto node = [&](const std::string& flag) {
    return runner.start(
        {"ddprun", "--nnodes=2", "--rdzv-backend=c10d", endpoint, flag, "--no-python", "sh", "-c", "echo $GROUP_RANK"});
  };
  auto b = node("--node-rank=1");
  auto a = node("--node-rank=0");
  EXPECT_EQ(b.wait().out, "1\n");
  EXPECT_EQ(a.wait().out, "0\n");
  auto y = node("--topology-key=rack2");
  auto x = node("--topology-key=rack1");
  EXPECT_EQ(y.wait().out, "1\n");
  EXPECT_EQ(x.wait().out, "0\n");
}

TEST_F(Flags, LocalAddr) {
  HeldPort port;
  const auto run = sh(
      {"--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:" + std::to_string(port.release()), "--local-addr=127.0.0.9"},
      "echo $MASTER_ADDR; exec 3<>/dev/null; true");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "127.0.0.9\n");
}

TEST_F(Flags, BusyMasterPortNamesItsHolder) {
  HeldPort port;
  ASSERT_EQ(::listen(port.fd, 4), 0);
  const auto run = sh({"--master-port=" + std::to_string(port.port)}, "echo ran");
  EXPECT_NE(run.code, 0);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, AllOf(HasSubstr(std::to_string(port.port)), HasSubstr("pid " + std::to_string(::getpid()))));
}

// TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: worker 0 binds MASTER_PORT, and the race for it is run again once.
TEST_F(Flags, WorkersThatBindTheMasterPortThemselves) {
  runner.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1";
  runner.write("bind.py",
               "import os, socket\n"
               "s = socket.socket(); s.bind(('127.0.0.1', int(os.environ['MASTER_PORT']))); s.listen()\n"
               "print(os.environ['TORCHELASTIC_USE_AGENT_STORE'])\n");
  auto run = ddprun({"bind.py"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "False\n");
  const std::string fails_once =
      "echo x >> tries; test $(wc -l < tries) = 2 || { echo Address already in use >&2; exit 1; }";
  run = sh({}, fails_once);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("somebody else took MASTER_PORT"));
  runner.environment.erase("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
  runner.write("tries", "");
  EXPECT_EQ(sh({}, fails_once).code, 1);  // not our race: no second chance
}

TEST_F(Flags, PortRange) {
  const auto run = sh({"--port-range=23100-23900"}, "echo $MASTER_PORT");
  EXPECT_EQ(run.code, 0) << run.err;
  const int port = std::atoi(run.out.c_str());
  EXPECT_GE(port, 23100);
  EXPECT_LE(port, 23900);
  refused({"--port-range=9-3"}, "--port-range");
}

TEST_F(Flags, MaxRestartsRestartBackoffCrashLoopLimit) {
  const std::string count = "echo x >> count; echo $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS; exit 3";
  auto run = sh({"--max-restarts=2"}, count);
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.lines(), ElementsAre("0/2", "1/2", "2/2"));
  run = sh({"--max-restarts=1", "--restart-backoff=0.7"}, count);
  EXPECT_EQ(run.code, 3);
  EXPECT_GE(run.lasted.count(), 700);
  run = sh({"--max-restarts=100", "--crash-loop-limit=3"}, count);
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.lines(), ElementsAre("0/100", "1/100", "2/100"));
  EXPECT_THAT(run.err, HasSubstr("crash-loop-limit"));
  refused({"--max-restarts=-1"}, "--max-restarts");
}

TEST_F(Flags, MonitorIntervalStartMethodLogsSpecs) {
  const auto run = sh({"--monitor-interval=5", "--start-method=spawn"}, "true");
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.err, HasSubstr("--monitor-interval is not needed"));
  EXPECT_LT(run.lasted.count(), 4000);
  refused({"--monitor-interval=0"}, "--monitor-interval");
  refused({"--start-method=fork"}, "--start-method: 'fork' is not supported");
  refused({"--logs-specs=mine"}, "--logs-specs: 'mine' names a Python plug-in");
}

TEST_F(Flags, EventLogHandler) {
  // Rank 1 fails when the launcher has seen (reaped) rank 0's end: else that one might be stopped before it has ended.
  auto run = sh({"--event-log-handler=console", "--nproc-per-node=2"},
                "[ $RANK = 0 ] && echo $$ > pid0.new && mv pid0.new pid0 && exit 0; until [ -f pid0 ]; do sleep 0.01; "
                "done; while kill -0 $(cat pid0) 2>/dev/null; do sleep 0.01; done; exit 1");
  EXPECT_EQ(run.code, 1);
  for (const char* state : {"RENDEZVOUS", "START", "SUCCEEDED", "FAILED"}) {
    EXPECT_THAT(run.err, HasSubstr("{\"name\":\"torchelastic.worker.status." + std::string(state) + "\"")) << run.err;
  }
  run = sh({"--event-log-handler=dynamic_rendezvous"}, "true");
  EXPECT_THAT(run.err, AllOf(HasSubstr("\"torchelastic.rdzv.RUNNING\""), HasSubstr("\"torchelastic.rdzv.SUCCEEDED\"")));
  EXPECT_THAT(run.err, Not(HasSubstr("worker.status")));
  EXPECT_THAT(sh({}, "true").err, Not(HasSubstr("torchelastic.")));
}

TEST_F(Flags, EnvAndPresets) {
  runner.environment["A"] = "outer";
  const auto run = sh({"--env=A=1", "--env", "B=x=y z", "--nccl-debug", "--nccl-algo=Tree", "--nccl-shm-disable",
                       "--cuda-launch-blocking", "--network-interface=lo"},
                      "echo $A,$B,$NCCL_DEBUG,$NCCL_ALGO,$NCCL_SHM_DISABLE,$CUDA_LAUNCH_BLOCKING,$NCCL_SOCKET_IFNAME,"
                      "$GLOO_SOCKET_IFNAME");
  EXPECT_EQ(run.out, "1,x=y z,INFO,Tree,1,1,lo,lo\n");
  EXPECT_EQ(sh({"--nccl-debug-subsystems=INIT,NET"}, "echo $NCCL_DEBUG $NCCL_DEBUG_SUBSYS").out, "INFO INIT,NET\n");
  refused({"--env=RANK=1"}, "RANK is set by ddprun");
  refused({"--network-interface=nonesuch0"}, "there is no 'nonesuch0' here");
}

TEST_F(Flags, Stdin) {
  runner.stdin_text = "hello\n";
  const std::string script = "read line; echo \"$RANK:$line\"";
  EXPECT_THAT(sh({"--nproc-per-node=2"}, script).lines(), ElementsAre("0:hello", "1:"));
  EXPECT_THAT(sh({"--nproc-per-node=2", "--stdin=none"}, script).lines(), ElementsAre("0:", "1:"));
  const auto all = sh({"--nproc-per-node=1", "--stdin=all"}, script);
  EXPECT_THAT(all.lines(), ElementsAre("0:hello"));
  refused({"--stdin=some"}, "--stdin");
}

// Closed standard descriptors: none of ours may get their numbers and end up with a worker.
TEST_F(Flags, StartedWithClosedStandardDescriptors) {
  const std::string program = std::string(DDPRUN_BINARY_DIR) + "/ddprun";
  const std::string worker = "readlink /proc/self/fd/0 >" + (runner / "stdin") + "; echo lost";
  runner.write("start", "#!/bin/sh\nexec " + program + " --no-python sh -c '" + worker + "' <&- >&- 2>&-\n", true);
  EXPECT_EQ(runner.run({runner / "start"}).code, 0);
  EXPECT_EQ(runner.read("stdin"), "/dev/null\n");
}

TEST_F(Flags, WorkerLimit) {
  const auto run = sh({"--worker-limit=nofile=200,core=0", "--worker-limit=address-space=2G"},
                      "echo $(ulimit -n) $(ulimit -c) $(ulimit -v)");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "200 0 2097152\n");
  refused({"--worker-limit=files=3"}, "there is no limit 'files'");
}

TEST_F(Flags, ExitCode) {
  EXPECT_EQ(sh({}, "exit 7").code, 7);
  EXPECT_EQ(sh({}, "kill -SEGV $$").code, 128 + SIGSEGV);
  EXPECT_EQ(sh({"--nproc-per-node=2"}, "exit 75").code, 75);
  EXPECT_EQ(ddprun({"--no-python", "./none"}).code, 127);
  runner.write("plain.sh", "#!/bin/sh\n");
  EXPECT_EQ(ddprun({"--no-python", "./plain.sh"}).code, 126);
  EXPECT_EQ(sh({"--exit-code=torchrun"}, "exit 7").code, 1);
  EXPECT_EQ(ddprun({"--exit-code=torchrun", "--no-python", "./none"}).code, 1);
  EXPECT_EQ(sh({"--exit-code=torchrun"}, "true").code, 0);
  refused({"--exit-code=torchrun", "--nnodes=0"}, "--nnodes");
}

TEST_F(Flags, Report) {
  auto run = sh({"--report=r.json", "--nproc-per-node=2"}, "test $RANK = 0 || exit 9; sleep 30");
  EXPECT_EQ(run.code, 9);
  EXPECT_THAT(runner.read("r.json"), AllOf(HasSubstr("\"exit_code\""), HasSubstr("9"), HasSubstr("\"rank\"")));
  run = ddprun({"--report=n.json", "--no-python", "./none"});
  EXPECT_THAT(runner.read("n.json"), AllOf(HasSubstr("127"), HasSubstr("./none")));
}

TEST_F(Flags, LogLevel) {
  EXPECT_EQ(sh({"--log-level=error"}, "true").err, "");
  EXPECT_THAT(sh({}, "true").err, HasSubstr(" I ddprun "));
  runner.environment["LOGLEVEL"] = "ERROR";
  EXPECT_EQ(sh({}, "true").err, "");
}

TEST_F(Flags, HelpVersionCompletion) {
  EXPECT_THAT(ddprun({"--help"}).out, HasSubstr("--nproc-per-node"));
  EXPECT_THAT(ddprun({"-h"}).out, HasSubstr("PET_NNODES"));
  // Examples first, the usual options in groups; all of them on demand.
  const std::string help = ddprun({"--help"}).out;
  EXPECT_LT(help.find("Examples:"), help.find("--nproc-per-node N"));
  EXPECT_THAT(help, AllOf(HasSubstr("\nFailures:\n  --max-restarts N\n"), Not(HasSubstr("--topology-key"))));
  const std::string all = ddprun({"--help-all"}).out;
  EXPECT_THAT(all, AllOf(HasSubstr("Examples:"), HasSubstr("\nRare options:\n"), HasSubstr("--topology-key")));
  EXPECT_THAT(ddprun({"--version"}).out, HasSubstr("commit"));
  EXPECT_THAT(ddprun({"--help-markdown"}).out, HasSubstr("| `--nnodes` |"));
  const auto script = ddprun({"--print-completion=bash"});
  EXPECT_EQ(script.code, 0);
  runner.write("c.sh", script.out + "complete -p ddprun >/dev/null && echo fine\n");
  EXPECT_EQ(runner.run({"/bin/bash", "c.sh"}).out, "fine\n");
}

TEST_F(Flags, TheTwoLinesThatMustWorkVerbatim) {
  const std::string program =
      "import os, sys\nopen('got' + os.environ['RANK'], 'w').write(' '.join(sys.argv[1:]) + ' ' + "
      "os.environ['WORLD_SIZE'] + ' ' + os.environ['TORCHELASTIC_MAX_RESTARTS'])\n";
  runner.write("train.py", program);
  HeldPort usual;  // another test may hold 29500; the line itself does not care which port it is
  const auto run = ddprun({"--nnodes=1", "--nproc_per_node=8", "--max_restarts=3", "--rdzv_id=123456",
                           "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:" + std::to_string(usual.release()),
                           "train.py", "--cfg", "configs/exp001.yaml"});
  EXPECT_EQ(run.code, 0) << run.err;
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(runner.read("got" + std::to_string(rank)), "--cfg configs/exp001.yaml 8 3");
  }
  HeldPort another;
  const auto legacy = runner.run(
      {"ddprun-launch", "--nproc_per_node=4", "--master_port=" + std::to_string(another.release()), "train.py"});
  EXPECT_EQ(legacy.code, 0) << legacy.err;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(runner.read("got" + std::to_string(rank)), "--local-rank=" + std::to_string(rank) + " 4 0");
  }
}

TEST_F(Flags, LegacyLocalRankStyle) {
  const auto launch = [this](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ddprun-launch");
    return runner.run(arguments);
  };
  runner.write("old.py", "import sys  # --local_rank\nprint(sys.argv[1:])\n");
  runner.write("new.py", "import sys\nprint(sys.argv[1:])\n");
  EXPECT_EQ(launch({"old.py", "a"}).out, "['--local_rank=0', 'a']\n");
  EXPECT_EQ(launch({"new.py", "a"}).out, "['--local-rank=0', 'a']\n");
  EXPECT_EQ(launch({"--local-rank-style=underscore", "new.py"}).out, "['--local_rank=0']\n");
  EXPECT_EQ(launch({"--local_rank_style=hyphen", "old.py"}).out, "['--local-rank=0']\n");
  EXPECT_EQ(launch({"--use_env", "new.py", "a"}).out, "['a']\n");
  EXPECT_EQ(launch({"--use-env", "--no-python", "echo", "b"}).out, "b\n");
  EXPECT_EQ(launch({"--no-python", "echo", "b"}).code, 2);
}

TEST_F(Flags, UnknownOptionNamesTheNearest) {
  const auto run = ddprun({"--nprocs-per-node=2", "x.py"});
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("--nproc-per-node"));
  EXPECT_EQ(ddprun({}).code, 2);
  refused({"--max-restarts=-1"}, "'-1' is outside of 0 to 1000000000");
}

// The README's table is the option table; DDPRUN_REWRITE=1 writes it.
TEST_F(Flags, ReadmeHasTheTable) {
  const std::string path = std::string(DDPRUN_SOURCE_DIR) + "/launcher/README.md";
  std::ifstream in(path);
  std::ostringstream buffer;
  buffer << in.rdbuf();
  std::string text = buffer.str();
  const std::string begin = "<!-- options: begin -->\n", end = "<!-- options: end -->";
  const auto first = text.find(begin), last = text.find(end);
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(last, std::string::npos);
  const std::string head = "| option | variable | default | torchrun | meaning |\n| --- | --- | --- | --- | --- |\n";
  const auto launch = runner.run({"ddprun-launch", "--help-markdown"}).out;
  std::string extra;
  std::istringstream lines(launch);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("`--use-env`") != std::string::npos || line.find("`--local-rank-style`") != std::string::npos) {
      extra += line + "\n";
    }
  }
  const std::string wanted = head + ddprun({"--help-markdown"}).out + "\nOnly `ddprun-launch`:\n\n" + head + extra;
  const auto start = first + begin.size();
  if (text.substr(start, last - start) != wanted && std::getenv("DDPRUN_REWRITE") != nullptr) {
    text.replace(start, last - start, wanted);
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text.substr(start, last - start), wanted) << "run this test with DDPRUN_REWRITE=1 and review the diff";
}

// Every option of the help has a test that uses it.
TEST_F(Flags, EveryFlagHasATest) {
  std::ostringstream buffer;
  for (const char* file : {"surface_flags_test.cc", "surface_worker_flags_test.cc", "../hosts/hosts_process_test.py",
                           "../hosts/hosts_loss_test.py", "../engines/mpi_test.py"}) {
    buffer << std::ifstream(std::string(DDPRUN_SOURCE_DIR) + "/tests/process/launcher/" + file).rdbuf();
  }
  const std::string source = buffer.str();
  std::istringstream help(runner.run({"ddprun-launch", "--help-all"}).out);
  int count = 0;
  for (std::string line; std::getline(help, line);) {
    if (line.size() < 5 || line.compare(0, 2, "  ") != 0 || line[2] != '-') continue;
    const auto name_begin = line.find("--") + 2;
    const std::string name = line.substr(name_begin, line.find_first_of(" \n", name_begin) - name_begin);
    ++count;
    EXPECT_THAT(source, HasSubstr("--" + name)) << "no test uses --" << name;
  }
  EXPECT_GT(count, 50);
}

}  // namespace
