#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/surface_run.h"

// What each flag of ddprun does, seen from the outside. Each test names its flags; a flag without one is found by
// EveryFlagHasATest.
namespace ddprun::testing {

class Flags : public ::testing::Test {
 protected:
  // ddprun FLAGS --no-python sh -c SCRIPT
  Finished sh(std::vector<std::string> flags, const std::string& script) {
    flags.insert(flags.begin(), "ddprun");
    for (const char* word : {"--no-python", "sh", "-c"}) flags.emplace_back(word);
    flags.push_back(script);
    return runner.run(flags);
  }
  Finished ddprun(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ddprun");
    return runner.run(arguments);
  }
  // Exit 2 with these words, and no worker ran.
  void refused(std::vector<std::string> flags, const std::string& words) {
    const auto run = sh(std::move(flags), "echo ran");
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_THAT(run.err, ::testing::HasSubstr(words));
    EXPECT_EQ(run.out, "");
    EXPECT_LE(std::count(run.err.begin(), run.err.end(), '\n'), 3) << run.err;
  }
  // All files below the log folder, relative to its one run folder.
  std::vector<std::string> log_tree(const std::string& name) {
    std::vector<std::string> out;
    for (const auto& run : std::filesystem::directory_iterator(runner / name)) {
      for (const auto& file : std::filesystem::recursive_directory_iterator(run.path())) {
        if (file.is_regular_file()) out.push_back(std::filesystem::relative(file.path(), run.path()));
      }
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  std::string log_text(const std::string& name, const std::string& file) {
    for (const auto& run : std::filesystem::directory_iterator(runner / name)) {
      std::ifstream in(run.path() / file);
      std::ostringstream text;
      text << in.rdbuf();
      return text.str();
    }
    return "(no log folder)";
  }

  ProgramRunner runner;
};

}  // namespace ddprun::testing
