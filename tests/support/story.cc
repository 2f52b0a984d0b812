#include "tests/support/story.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

namespace ddprun::test {

std::vector<std::filesystem::path> story_files(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(DDPRUN_SOURCE_DIR "/tests/testdata/" + folder)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string story_name(const std::filesystem::path& file) {
  std::string name = file.stem().string();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

void check_story(const std::filesystem::path& file, const std::function<std::string(const std::string&)>& run) {
  std::ifstream in(file);
  ASSERT_TRUE(in) << file;
  std::string line, expected_all, actual_all, output;
  bool in_output = false;
  while (std::getline(in, line)) {
    expected_all += line + "\n";
    if (in_output) {
      if (!line.empty()) continue;
      in_output = false;
      actual_all += output + "\n";
      output.clear();
      continue;
    }
    actual_all += line + "\n";
    if (line == "----") {
      in_output = true;
    } else if (!line.empty() && line.front() != '#') {
      output += run(line);
    }
  }
  if (in_output) actual_all += output;
  EXPECT_EQ(actual_all.find("BROKEN"), std::string::npos);
  EXPECT_EQ(actual_all.find("unknown command"), std::string::npos);
  if (std::getenv("DDPRUN_REWRITE") != nullptr) {
    in.close();
    std::ofstream(file) << actual_all;
    return;
  }
  EXPECT_EQ(actual_all, expected_all);
}

}  // namespace ddprun::test
