#pragma once

#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "common/options.h"

namespace ddprun {

// An environment as a test writes or reads it: NAME=VALUE lines of a file, changed by hand.
class RecordedEnv {
 public:
  RecordedEnv() = default;
  explicit RecordedEnv(const std::string& file) {
    std::ifstream in(std::string(DDPRUN_SOURCE_DIR) + "/tests/testdata/engines/" + file);
    std::string line;
    while (std::getline(in, line)) values_[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  }
  RecordedEnv& set(const std::string& name, const std::string& value) {
    values_[name] = value;
    return *this;
  }
  RecordedEnv& unset(const std::string& name) {
    values_.erase(name);
    return *this;
  }
  bool empty() const { return values_.empty(); }
  EnvLookup lookup() const {
    return [values = values_](const std::string& name) -> std::optional<std::string> {
      const auto found = values.find(name);
      return found == values.end() ? std::nullopt : std::optional(found->second);
    };
  }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace ddprun
