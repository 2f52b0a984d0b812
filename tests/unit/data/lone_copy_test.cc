#include "worker/ranks/lone_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace ddprun::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What is refused; "" = nothing.
std::string refused(const std::map<std::string, std::string>& environment) {
  auto alone = check_lone_copy([&environment](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
  return alone ? "" : alone.error().message();
}

TEST(LoneCopy, OneIsNobodysCopy) {
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_ID", "0"}}), "");
  EXPECT_EQ(refused({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), "");
  EXPECT_EQ(refused({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), "");
  EXPECT_EQ(refused({{"PMIX_RANK", "0"}}), "");
  EXPECT_EQ(refused({{"PMI_RANK", "x"}, {"PMI_SIZE", "2"}}), "");
}

TEST(LoneCopy, ABatchScriptRunsOnce) {
  std::map<std::string, std::string> batch{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}};
  EXPECT_EQ(refused(batch), "");
  batch["SLURM_STEP_ID"] = "0";
  EXPECT_THAT(refused(batch), HasSubstr("one of 8 copies that srun started (SLURM_PROCID=0)"));
  EXPECT_NE(refused({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}), "");
  EXPECT_EQ(refused({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}}), "");
}

TEST(LoneCopy, AShellThatSlurmGaveATerminalIsOneProcess) {
  EXPECT_EQ(refused({{"SLURM_PROCID", "0"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_PTY_PORT", "34567"}}),
            "");
  EXPECT_EQ(refused({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967290"}, {"SLURM_NTASKS", "2"}}), "");
}

// Its daemons are a step of two tasks.
TEST(LoneCopy, AnMpirunInsideOfASlurmJobDecides) {
  std::map<std::string, std::string> task{{"SLURM_PROCID", "0"},         {"SLURM_STEP_ID", "0"},
                                          {"SLURM_STEP_NUM_TASKS", "2"}, {"OMPI_COMM_WORLD_RANK", "0"},
                                          {"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_EQ(refused(task), "");
  task["OMPI_COMM_WORLD_SIZE"] = "3";
  EXPECT_THAT(refused(task), AllOf(HasSubstr("3 copies that mpirun"), HasSubstr("ddprun --nnodes=3")));
}

TEST(LoneCopy, SaysTheCommandThatMakesThemOneWorld) {
  EXPECT_THAT(refused({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("one of 2 copies that mpirun started"),
                    HasSubstr(": ddprun --nproc-per-node=2 trainer --config FILE."), HasSubstr("--single")));
  EXPECT_THAT(refused({{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_STEP_NUM_NODES", "2"}}),
              HasSubstr(": srun --ntasks-per-node=1 ddprun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d "
                        "--rdzv-endpoint=FIRST-HOST:29400 trainer"));
  EXPECT_THAT(refused({{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}, {"PMI_SIZE", "6"}, {"MPI_LOCALNRANKS", "3"}}),
              HasSubstr("mpiexec -ppn 1 ddprun --nnodes=2 --nproc-per-node=3"));
  EXPECT_THAT(refused({{"PMIX_RANK", "2"}}), HasSubstr("PMIX_RANK=2"));
}

}  // namespace
}  // namespace ddprun::trainer
