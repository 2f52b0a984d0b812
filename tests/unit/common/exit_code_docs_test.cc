// The exit codes in the README and in deploy/ are those of common/exit_code.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "common/exit_code.h"

namespace ddprun {
namespace {

std::string read_file(const std::string& name) {
  std::ifstream in(std::string(DDPRUN_SOURCE_DIR) + "/" + name);
  EXPECT_TRUE(in.is_open()) << name;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

bool known(int code) {
  return std::any_of(kExitCodes.begin(), kExitCodes.end(), [code](const ExitCodeEntry& e) { return e.code == code; });
}

TEST(ExitCodeDocs, TheReadmesTableHasEachCodeWithItsMeaning) {
  const std::string readme = read_file("README.md");
  for (const ExitCodeEntry& entry : kExitCodes) {
    const std::string row = "\n| " + std::to_string(entry.code) + " | " + std::string(entry.meaning);
    EXPECT_NE(readme.find(row), std::string::npos) << "README.md lacks a row that starts with: " << row;
  }
}

TEST(ExitCodeDocs, TheReadmesTableHasNoCodeOfItsOwn) {
  const std::string readme = read_file("README.md");
  const auto start = readme.find("## Exit codes");
  ASSERT_NE(start, std::string::npos);
  const std::string section = readme.substr(start, readme.find("\n## ", start + 1) - start);
  const std::regex row("\n\\| ([0-9]+) \\|");
  int rows = 0;
  for (auto i = std::sregex_iterator(section.begin(), section.end(), row); i != std::sregex_iterator(); ++i, ++rows) {
    EXPECT_TRUE(known(std::stoi((*i)[1]))) << (*i)[1];
  }
  EXPECT_EQ(rows, static_cast<int>(kExitCodes.size()));
}

TEST(ExitCodeDocs, KubernetesPolicyNamesCodesOfTheTable) {
  const std::string yaml =
      read_file("deploy/kubernetes/job/job.yaml") + read_file("deploy/kubernetes/jobset/jobset.yaml");
  const std::regex list("onExitCodes:.*values: *\\[([0-9, ]+)\\]");
  int codes = 0;
  for (auto i = std::sregex_iterator(yaml.begin(), yaml.end(), list); i != std::sregex_iterator(); ++i) {
    std::stringstream values((*i)[1]);
    for (std::string value; std::getline(values, value, ',');) {
      const int code = std::stoi(value);
      EXPECT_TRUE(known(code) || code > exit_code::kSignalBase) << code;
      ++codes;
    }
  }
  EXPECT_GT(codes, 0) << "deploy/kubernetes has no podFailurePolicy any more";
}

TEST(ExitCodeDocs, TheSlurmFileRequeuesWithTheResumeCode) {
  const std::string script = read_file("deploy/slurm/submit_job.sh");
  EXPECT_NE(script.find("exit_code\": *" + std::to_string(exit_code::kResumeMe)), std::string::npos);
  EXPECT_NE(script.find("$code = " + std::to_string(exit_code::kUnavailable)), std::string::npos);
}

}  // namespace
}  // namespace ddprun
