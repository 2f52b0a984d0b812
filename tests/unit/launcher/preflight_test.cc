#include "launcher/options/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <fstream>

#include "launcher/options/cpu_budget.h"
#include "launcher/options/numa.h"

namespace ddprun::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

HostState good_host() {
  HostState host;
  host.gpus = 4;
  host.visible_gpus = 4;
  host.usable_cpus = host.online_cpus = 8;
  host.open_files_soft = host.open_files_hard = 4096;
  host.shm_size_bytes = 8ULL << 30;
  host.log_dir_free_bytes = 8ULL << 30;
  host.host_name = "node1";
  host.host_addresses = {{"10.0.0.1"}};
  host.interfaces = {"lo", "eth0"};
  return host;
}

LaunchOptions job(std::int64_t workers) {
  LaunchOptions options;
  options.node.nproc = workers;
  options.job.nnodes_max = 2;
  return options;
}

std::vector<std::string> words(const HostState& host, const LaunchOptions& options) {
  std::vector<std::string> out;
  for (const auto& finding : judge(host, options, false)) {
    EXPECT_EQ(finding.exit_code != 0, finding.level == Finding::Level::error) << finding.text;
    out.push_back((finding.level == Finding::Level::error ? "error " : "warning ") + finding.subject + ": " +
                  finding.text);
  }
  return out;
}

TEST(Preflight, NothingToSayAboutAGoodHost) {
  EXPECT_THAT(words(good_host(), job(4)), IsEmpty());
  EXPECT_GT(judge(good_host(), job(4), true).size(), 5u);
}

TEST(Preflight, MoreWorkersThanGpus) {
  auto host = good_host();
  host.visible_gpus = 2;
  EXPECT_THAT(words(host, job(3)), ElementsAre(HasSubstr("3 workers, but 2 of this host's 4 GPUs can be seen")));
  host.gpus = host.visible_gpus = 0;  // a CPU job
  EXPECT_THAT(words(host, job(3)), IsEmpty());
  auto options = job(2);
  options.workers.devices = {"0", "9"};
  EXPECT_THAT(words(good_host(), options), ElementsAre(HasSubstr("error GPUs: --devices: there is no GPU 9")));
}

TEST(Preflight, SeveralMigInstancesForOneProcess) {
  auto host = good_host();
  host.gpus = 1;
  host.visible_gpus = host.mig_instances = 3;
  EXPECT_THAT(words(host, job(2)),
              ElementsAre(HasSubstr("2 workers, but CUDA shows a process only one of the 3 MIG instances")));
  EXPECT_THAT(words(host, job(1)), IsEmpty());
  auto options = job(3);
  options.workers.virtual_local_rank = true;
  EXPECT_THAT(words(host, options), IsEmpty());
  options.workers.devices = {"MIG-1", "MIG-2", "MIG-3"};
  host.mig_instances = 0, host.visible_gpus = 1;
  EXPECT_THAT(words(host, options), IsEmpty());
  options.workers.virtual_local_rank = false;
  EXPECT_THAT(words(host, options), ElementsAre(HasSubstr("--virtual-local-rank")));
}

TEST(Preflight, DevicesWithoutADriver) {
  auto host = good_host();
  host.gpus.reset();
  auto options = job(2);
  options.workers.devices = {"0", "1"};
  EXPECT_THAT(words(host, options), ElementsAre(HasSubstr("--devices=0,1 only sets CUDA_VISIBLE_DEVICES here")));
}

TEST(Preflight, DriverThatDoesNotAnswer) {
  auto host = good_host();
  host.gpus.reset();
  host.gpu_problem = "nvmlInit: Driver/library version mismatch";
  EXPECT_THAT(words(host, job(1)), IsEmpty());
  host.gpu_device_files = true;
  EXPECT_THAT(words(host, job(1)), ElementsAre(HasSubstr("version mismatch")));
}

TEST(Preflight, LimitsOfTheHost) {
  auto host = good_host();
  host.open_files_soft = 100;
  EXPECT_THAT(words(host, job(8)), testing::Contains(HasSubstr("warning open files: the limit is 100 (at most 4096)")));
  host.open_files_hard = 100;
  EXPECT_THAT(words(host, job(8)).front(), HasSubstr("error open files"));
  host = good_host();
  host.usable_cpus = 1;
  EXPECT_THAT(words(host, job(4)), ElementsAre(HasSubstr("all 4 workers share one of this host's 8 CPUs")));
  host = good_host();
  host.processes_soft = 10;
  EXPECT_THAT(words(host, job(4)), ElementsAre(HasSubstr("warning processes: the limit is 10")));
  host.processes_soft = 400;
  EXPECT_THAT(words(host, job(4)), IsEmpty());
  host.processes_in_use = 390;
  EXPECT_THAT(words(host, job(1)), ElementsAre(HasSubstr("390 are there already and 1 worker with")));
  host = good_host();
  host.shm_size_bytes = 64ULL << 20;
  EXPECT_THAT(words(host, job(2)), ElementsAre(HasSubstr("/dev/shm has 64 MiB")));
  host = good_host();
  host.log_dir_free_bytes = 3ULL << 20;
  EXPECT_THAT(words(host, job(2)), ElementsAre(HasSubstr("only 3 MiB are free there")));
}

TEST(Preflight, LimitsThatEndAWorkerLate) {
  auto host = good_host();
  host.file_size_bytes = 1 << 30;
  EXPECT_THAT(words(host, job(2)), ElementsAre(HasSubstr("ulimit -f unlimited")));
  host = good_host();
  host.cpu_seconds = 600;
  EXPECT_THAT(words(host, job(2)), ElementsAre(HasSubstr("after 600 s of CPU time; ulimit -t")));
  host = good_host();
  host.address_space_bytes = 4ULL << 30;
  EXPECT_THAT(words(host, job(2)), ElementsAre(HasSubstr("ulimit -v unlimited")));
  host.gpus = host.visible_gpus = 0;
  EXPECT_THAT(words(host, job(2)), IsEmpty());
  host = good_host();
  host.locked_memory_bytes = 8 << 20;
  EXPECT_THAT(words(host, job(2)), IsEmpty());
  host.infiniband = true;
  EXPECT_THAT(words(host, job(2)), ElementsAre(HasSubstr("ulimit -l unlimited")));
  host = good_host();
  host.shm_free_bytes = 5 << 20;
  EXPECT_THAT(words(host, job(2)), ElementsAre(HasSubstr("of which 5 MiB are free")));
  EXPECT_THAT(words(host, job(1)), IsEmpty());
}

TEST(Preflight, NamesAndInterfaces) {
  auto host = good_host();
  host.host_addresses = {{"127.0.1.1"}};
  EXPECT_THAT(words(host, job(2)), ElementsAre(HasSubstr("'node1' is 127.0.1.1 here")));
  host.host_addresses = std::vector<std::string>{};
  EXPECT_THAT(words(host, job(2)), ElementsAre(HasSubstr("'node1' has no address")));
  host.host_addresses.reset();
  EXPECT_THAT(words(host, job(2)), IsEmpty());
  auto options = job(2);
  options.node.network_interface = "ib0";
  EXPECT_THAT(words(host, options), ElementsAre(HasSubstr("there is no 'ib0' here; there are lo, eth0")));
}

TEST(Preflight, AddressSpaceLimitAndGpusDoNotMix) {
  auto options = job(2);
  options.workers.limits = {{RLIMIT_AS, 1ULL << 32}};
  EXPECT_THAT(words(good_host(), options), ElementsAre(HasSubstr("CUDA reserves far more address space")));
}

TEST(Preflight, LooksAroundThisHost) {
  const auto host = look_around("/no/such/folder/here");
  EXPECT_GE(host.online_cpus, 1);
  EXPECT_GE(host.open_files_soft, 16);
  EXPECT_TRUE(host.log_dir_free_bytes.has_value());  // of the nearest folder that exists
  EXPECT_THAT(host.interfaces, testing::Contains("lo"));
  EXPECT_EQ(interface_address("lo"), "127.0.0.1");
  EXPECT_EQ(interface_address("nonesuch0"), std::nullopt);
}

class Numa : public testing::Test {
 protected:
  void TearDown() override { ::unsetenv("HWLOC_SYNTHETIC"); }

  std::vector<std::string> bind(const char* topology, const std::string& mode, std::int64_t workers,
                                std::vector<std::optional<int>> gpu_nodes = {},
                                std::optional<std::vector<int>> allowed = std::nullopt) {
    ::setenv("HWLOC_SYNTHETIC", topology, 1);
    NumaRequest request{mode, workers, std::move(gpu_nodes), std::move(allowed)};
    auto cpus = numa_binding(request);
    if (!cpus) return {"error: " + cpus.error().message()};
    std::vector<std::string> out;
    for (const auto& list : *cpus) out.push_back(cpu_list(list));
    return out;
  }
};

TEST_F(Numa, NodeSocketExclusiveAndCoreComplex) {
  const char* machine = "pack:2 node:2 l3:2 core:2 pu:1";  // 16 CPUs, nodes 0-3 and 4-7 in package 0
  EXPECT_THAT(bind(machine, "node", 4), ElementsAre("0-3", "4-7", "8-11", "12-15"));
  EXPECT_THAT(bind(machine, "node", 2), ElementsAre("0-3", "8-11"));
  EXPECT_THAT(bind(machine, "socket", 2), ElementsAre("0-7", "8-15"));
  EXPECT_THAT(bind(machine, "exclusive", 8), ElementsAre("0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"));
  EXPECT_THAT(bind(machine, "core-complex", 4), ElementsAre("0-1", "4-5", "8-9", "12-13"));
  EXPECT_THAT(bind(machine, "core-complex", 8),
              ElementsAre("0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"));
}

TEST_F(Numa, FollowsTheGpus) {
  const char* machine = "node:2 core:4 pu:2";
  EXPECT_THAT(bind(machine, "node", 2, {1, 1}), ElementsAre("8-15", "8-15"));
  EXPECT_THAT(bind(machine, "exclusive", 2, {1, 1}), ElementsAre("8-11", "12-15"));
  EXPECT_THAT(bind(machine, "node", 2, {1, std::nullopt}), ElementsAre("8-15", "8-15"));
  EXPECT_THAT(bind(machine, "node", 1, {7}), ElementsAre(HasSubstr("local rank 0 is at NUMA node 7")));
}

TEST_F(Numa, MoreWorkersThanCoresShareThem) {
  EXPECT_THAT(bind("node:1 core:2 pu:1", "exclusive", 4), ElementsAre("0", "0", "1", "1"));
}

TEST_F(Numa, OurAffinityMaskCounts) {
  const char* machine = "node:2 core:4 pu:1";
  EXPECT_THAT(bind(machine, "node", 2, {}, {{1, 2, 6}}), ElementsAre("1-2", "6"));
  EXPECT_THAT(bind(machine, "node", 2, {}, {{1, 2}}), ElementsAre("1-2", "1-2"));
  EXPECT_THAT(bind(machine, "node", 1, {1}, {{1, 2}}), ElementsAre(HasSubstr("none of whose CPUs we may use")));
}

TEST_F(Numa, GpuNodeIsReadFromSysfs) {
  const std::string root = testing::TempDir() + "surface_sys";
  const std::string folder = root + "/bus/pci/devices/0000:1a:00.0";
  ASSERT_EQ(::system(("mkdir -p '" + folder + "'").c_str()), 0);
  std::ofstream(folder + "/numa_node") << "1\n";
  EXPECT_EQ(numa_node_of("00000000:1A:00.0", root), 1);
  std::ofstream(folder + "/numa_node") << "-1\n";
  EXPECT_EQ(numa_node_of("00000000:1A:00.0", root), 0);
  EXPECT_EQ(numa_node_of("00000000:2A:00.0", root), std::nullopt);
  ASSERT_EQ(::system(("rm -r '" + root + "'").c_str()), 0);
}

TEST(CgroupQuota, BothVersionsAndAllAncestorsCount) {
  const std::string root = testing::TempDir() + "surface_cgroup";
  ASSERT_EQ(::system(("mkdir -p '" + root + "/a/b' '" + root + "/cpu,cpuacct/job'").c_str()), 0);
  std::ofstream(root + "/a/cpu.max") << "150000 100000\n";
  std::ofstream(root + "/a/b/cpu.max") << "max 100000\n";
  EXPECT_EQ(cgroup_cpu_quota("0::/a/b\n", root), 1.5);
  EXPECT_EQ(cgroup_cpu_quota("0::/\n", root), std::nullopt);
  std::ofstream(root + "/cpu,cpuacct/job/cpu.cfs_quota_us") << "400000\n";
  std::ofstream(root + "/cpu,cpuacct/job/cpu.cfs_period_us") << "100000\n";
  EXPECT_EQ(cgroup_cpu_quota("4:cpu,cpuacct:/job\n0::/x\n", root), 4.0);
  std::ofstream(root + "/cpu,cpuacct/job/cpu.cfs_quota_us") << "-1\n";
  EXPECT_EQ(cgroup_cpu_quota("4:cpu,cpuacct:/job\n", root), std::nullopt);
  ASSERT_EQ(::system(("rm -r '" + root + "'").c_str()), 0);
}

}  // namespace
}  // namespace ddprun::launcher
