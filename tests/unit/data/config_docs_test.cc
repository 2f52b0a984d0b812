#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "worker/config/config.h"

// worker/CONFIGURATION.md has a row "| `section.key` | default | meaning |" for each key, in tables only.
namespace ddprun::trainer {
namespace {

std::string cell(const std::string& row, int number) {
  std::istringstream in(row);
  std::string text;
  for (int i = 0; i <= number; ++i) std::getline(in, text, '|');
  const auto from = text.find_first_not_of(" `");
  return from == std::string::npos ? "" : text.substr(from, text.find_last_not_of(" `") + 1 - from);
}

std::map<std::string, std::string> documented() {
  std::map<std::string, std::string> rows;
  std::ifstream in(DDPRUN_SOURCE_DIR "/worker/CONFIGURATION.md");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string key = cell(line, 1);
    EXPECT_TRUE(rows.emplace(key, cell(line, 2)).second) << key << " has two rows";
    EXPECT_NE(cell(line, 3), "") << key << " has no meaning";
  }
  return rows;
}

TEST(ConfigurationReference, HasEveryKeyWithItsDefault) { EXPECT_EQ(documented(), known_config_keys()); }

}  // namespace
}  // namespace ddprun::trainer
