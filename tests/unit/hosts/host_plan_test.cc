#include "launcher/hosts/host_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "launcher/options/options.h"

namespace ddprun::launcher {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Case {
  std::map<std::string, std::string> env, files;

  Result<ParsedOptions> parse(const std::vector<std::string>& words) const {
    return option_table(Flavour::run).parse(words, lookup());
  }
  EnvLookup lookup() const {
    return [this](const std::string& name) -> std::optional<std::string> {
      const auto at = env.find(name);
      return at == env.end() ? std::nullopt : std::optional(at->second);
    };
  }
  Result<HostList> list(const ParsedOptions& parsed) const {
    return read_host_list(parsed, lookup(), [this](const std::string& path) -> Result<std::string> {
      const auto at = files.find(path);
      if (at == files.end()) return Error(Errc::not_found, path + ": No such file or directory");
      return at->second;
    });
  }
  Result<HostPlan> plan(const std::vector<std::string>& words) const {
    auto parsed = parse(words);
    if (!parsed) return parsed.error();
    auto hosts = list(*parsed);
    if (!hosts) return hosts.error();
    return plan_hosts(*parsed, *hosts, "hosts-1");
  }
  std::string problem(const std::vector<std::string>& words) const {
    auto made = plan(words);
    return made ? "" : made.error().message();
  }
  std::vector<std::string> arguments(const std::vector<std::string>& words, std::size_t index) const {
    auto parsed = parse(words);
    auto made = plan(words);
    if (!made) return {made.error().message()};
    return node_arguments(option_table(Flavour::run), *parsed, *made, index, Endpoint{"10.0.0.1", 20'001});
  }
};

TEST(HostPlan, EachHostGetsItsOwnCommandLine) {
  const Case a;
  EXPECT_THAT(
      a.arguments({"-H", "a:2,b:4", "--max-restarts=3", "--env", "A=1", "--env", "B=2", "-m", "pkg.main", "-x"}, 0),
      testing::IsSupersetOf({"--module", "--max-restarts=3", "--env=A=1", "--env=B=2", "--nnodes=2", "--node-rank=0",
                             "--rdzv-id=hosts-1", "--nproc-per-node=2", "--rdzv-backend=c10d",
                             "--rdzv-endpoint=10.0.0.1:20001", "--rdzv-conf=is_host=1", "--engine=none"}));
  const auto second = a.arguments({"-H", "a:2,b:4", "t.py", "--hosts", "x"}, 1);
  EXPECT_THAT(second, Contains("--node-rank=1"));
  EXPECT_THAT(second, Contains("--nproc-per-node=4"));
  EXPECT_THAT(second, Contains("--rdzv-conf=is_host=0"));
  EXPECT_THAT(std::vector<std::string>(second.end() - 4, second.end()), ElementsAre("--", "t.py", "--hosts", "x"));
}

TEST(HostPlan, WhatIsGivenIsKept) {
  const Case a;
  const auto words = a.arguments({"-H", "a:2,b", "--nnodes=1:2", "--nproc-per-node=8", "--rdzv-id=job7",
                                  "--rdzv-endpoint=d:29400", "--rdzv-conf=join_timeout=5", "t.py"},
                                 1);
  EXPECT_THAT(words, testing::IsSupersetOf({"--nnodes=1:2", "--nproc-per-node=8", "--rdzv-id=job7",
                                            "--rdzv-endpoint=d:29400", "--rdzv-conf=join_timeout=5"}));
  EXPECT_THAT(words, Not(Contains(HasSubstr("is_host"))));
  EXPECT_THAT(a.arguments({"-H", "a,b", "--rdzv-conf=join_timeout=5", "t.py"}, 0),
              Contains("--rdzv-conf=join_timeout=5,is_host=1"));
  EXPECT_THAT(a.arguments({"-H", "a,b", "--rdzv-backend=static", "t.py"}, 1),
              testing::IsSupersetOf({"--rdzv-backend=static", "--master-addr=10.0.0.1", "--master-port=20001"}));
  EXPECT_THAT(a.arguments({"-H", "a:4,b", "--include=a:1,3@b", "t.py"}, 0),
              testing::IsSupersetOf({"--devices=1,3", "--nproc-per-node=2"}));
}

TEST(HostPlan, RefusesWhatAListAnswersAlready) {
  const Case a;
  EXPECT_THAT(a.problem({"-H", "a,b", "--node-rank=1", "t.py"}), HasSubstr("--node-rank: is for one node"));
  EXPECT_THAT(a.problem({"-H", "a,b", "--standalone", "t.py"}), HasSubstr("--standalone: is for one node"));
  EXPECT_THAT(a.problem({"-H", "a,b", "--nnodes=3", "t.py"}), HasSubstr("the list has 2 hosts"));
  EXPECT_THAT(a.problem({"-H", "a,b", "--nnodes=2:4", "t.py"}), HasSubstr("MIN:2"));
  EXPECT_THAT(a.problem({"-H", "a,b", "--nnodes=1:2", "--rdzv-backend=static", "t.py"}), HasSubstr("static ranks"));
  EXPECT_THAT(a.problem({"-H", "a,b", "--hostfile=f", "t.py"}), HasSubstr("give one of them"));
  EXPECT_THAT(a.problem({"--hostfile=f", "t.py"}), HasSubstr("--hostfile: f: No such file"));
}

TEST(HostPlan, AutoReadsTheFirstBatchSystem) {
  Case a;
  EXPECT_THAT(a.problem({"--hosts=auto", "t.py"}),
              HasSubstr("none of PBS_NODEFILE, LSB_DJOB_HOSTFILE and PE_HOSTFILE"));
  a.env["PE_HOSTFILE"] = "pe";
  a.files["pe"] = "n1 4 q x\n";
  EXPECT_THAT(a.arguments({"--hosts=auto", "t.py"}, 0), Contains("--nproc-per-node=4"));
  a.env["PBS_NODEFILE"] = "pbs";
  EXPECT_THAT(a.problem({"--hosts=auto", "t.py"}), HasSubstr("--hosts=auto (PBS_NODEFILE): pbs: No such file"));
  a.files["pbs"] = "m1\nm2\nm2\n";
  EXPECT_THAT(a.arguments({"--hosts=auto", "t.py"}, 1), testing::IsSupersetOf({"--nnodes=2", "--nproc-per-node=2"}));
}

TEST(HostPlan, AListThatIsTypedBeatsAVariable) {
  Case a;
  a.env["DDPRUN_HOSTFILE"] = "hf";
  a.files["hf"] = "x\n";
  EXPECT_THAT(a.arguments({"-H", "a,b", "t.py"}, 0), Contains("--nnodes=2"));
  EXPECT_THAT(a.arguments({"t.py"}, 0), Contains("--nnodes=1"));
}

TEST(HostPlan, VariablesTravelByAList) {
  EXPECT_THAT(passed_variables({{"PATH", "/bin"},
                                {"HOME", "/root"},
                                {"NCCL_DEBUG", "INFO"},
                                {"AWS_KEY", "secret"},
                                {"MY_A", "1"},
                                {"MY_B", "2"},
                                {"DDPRUN_HOSTS", "a,b"},
                                {"PET_NODE_RANK", "1"},
                                {"PET_MAX_RESTARTS", "2"}},
                               {"AWS_KEY, MY_*"}),
              ElementsAre("PATH=/bin", "NCCL_DEBUG=INFO", "AWS_KEY=secret", "MY_A=1", "MY_B=2", "PET_MAX_RESTARTS=2"));
}

}  // namespace
}  // namespace ddprun::launcher
