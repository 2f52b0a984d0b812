#include "launcher/options/cpu_budget.h"

#include <gtest/gtest.h>

#include <map>

namespace ddprun::launcher {
namespace {

std::optional<std::int64_t> slurm(const std::map<std::string, std::string>& environment) {
  return slurm_cpus([&environment](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(CpuBudget, TheTightestCounts) {
  CpuBudget budget;
  budget.affinity = 8;
  EXPECT_EQ(budget.usable(), 8);
  EXPECT_EQ(budget.text(), "8 CPUs can be used here");
  budget.cgroup_quota = 1.5;
  EXPECT_EQ(budget.usable(), 1);
  EXPECT_EQ(budget.text(), "1 CPU can be used here (the control group's quota is 1.5)");
  budget.cgroup_quota = 0.25;
  EXPECT_EQ(budget.usable(), 1);
  budget.cgroup_quota = 6;
  budget.slurm = 4;
  EXPECT_EQ(budget.usable(), 4);
  EXPECT_EQ(budget.text(), "4 CPUs can be used here (SLURM_CPUS_PER_TASK or SLURM_CPUS_ON_NODE)");
  budget.affinity = 2;
  EXPECT_EQ(budget.text(), "2 CPUs can be used here");
}

TEST(CpuBudget, SlurmsCpusAreTheTasks) {
  EXPECT_EQ(slurm({}), std::nullopt);
  EXPECT_EQ(slurm({{"SLURM_CPUS_PER_TASK", "3"}}), 3);
  EXPECT_EQ(slurm({{"SLURM_CPUS_ON_NODE", "16"}}), 16);
  EXPECT_EQ(slurm({{"SLURM_CPUS_ON_NODE", "16"}, {"SLURM_CPUS_PER_TASK", "4"}, {"SLURM_STEP_ID", "0"}}), 4);
  EXPECT_EQ(slurm({{"SLURM_CPUS_ON_NODE", "2"}, {"SLURM_CPUS_PER_TASK", "4"}}), 2);
  for (const char* nonsense : {"", "many", "-4", "0", "99999999999999999999"}) {
    EXPECT_EQ(slurm({{"SLURM_CPUS_PER_TASK", nonsense}}), std::nullopt) << nonsense;
  }
}

// The step is that of mpirun's own daemons.
TEST(CpuBudget, WithinAnMpirunSlurmsNumbersAreNotOurs) {
  EXPECT_EQ(slurm({{"SLURM_CPUS_ON_NODE", "1"}, {"SLURM_STEP_ID", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}), std::nullopt);
}

TEST(CpuBudget, InABatchScriptAllTasksOfTheNodeAreOurs) {
  std::map<std::string, std::string> batch{{"SLURM_CPUS_ON_NODE", "16"},
                                           {"SLURM_CPUS_PER_TASK", "2"},
                                           {"SLURM_TASKS_PER_NODE", "4(x2),3"},
                                           {"SLURM_PROCID", "0"}};
  EXPECT_EQ(slurm(batch), 8);
  batch["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(slurm(batch), 2);
  batch["SLURM_STEP_ID"] = "4294967290";  // salloc's shell, as a step
  EXPECT_EQ(slurm(batch), 8);
}

}  // namespace
}  // namespace ddprun::launcher
