#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

// YAML -> checked values. Every error is one sentence: "file.yaml:12: optimizer.lr: 'abc' is not a number".
// yaml-cpp stays behind this file.
namespace ddprun {

class ConfigSection;

// A whole file plus overrides. Reading marks keys as known; finish() reports the first bad value, else the first
// unknown key with the nearest known name.
class Config {
 public:
  // Errors: not_found, malformed (syntax, duplicate keys; with file:line), invalid_argument.
  static Result<Config> load(const std::string& path);
  static Result<Config> parse(const std::string& text, const std::string& name_for_errors);

  // "data.batch_size=32": sets or replaces one value (scalars and flow sequences). Errors name "--set".
  Result<void> override_value(const std::string& assignment);

  ConfigSection root();
  // The first error that any read met, else the first key that nothing read ("did you mean"), else what is missing.
  Result<void> finish() const;
  // Every key that a read asked for, as "data.batch_size" -> the fallback of that read as it would be written ("" for
  // none), whether the file has it or not: what a reference of the keys is compared with.
  std::map<std::string, std::string> known_keys() const;
  // The same keys with the values that hold: the file's, else the fallback; those without one, or without an effect
  // (no_effect()), are left out.
  std::map<std::string, std::string> effective() const;
  // What no_effect() has recorded, in the order of the calls.
  const std::vector<std::string>& warnings() const;

  Config(Config&&) noexcept;
  Config& operator=(Config&&) noexcept;
  ~Config();

  struct Impl;

 private:
  explicit Config(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One mapping of the file. Reads never fail at once: a bad value is remembered for finish() and the fallback returned.
class ConfigSection {
 public:
  // The mapping under `key`; a missing one reads as empty (all fallbacks). A scalar there reads as {scalar_key: it} if
  // `scalar_key` is given ("loss: mse" = "loss: {name: mse}"), else it is an error.
  ConfigSection section(std::string_view key, std::string_view scalar_key = "");

  bool has(std::string_view key) const;
  bool is_mapping(std::string_view key) const;
  bool is_empty(std::string_view key) const;  // given without a value ("file:", --set log.file=)
  std::string text(std::string_view key, std::string_view fallback);
  std::string required_text(std::string_view key);
  std::string choice(std::string_view key, std::string_view fallback, const std::vector<std::string>& allowed);
  // Paths: ~ and ${VAR} are expanded; an unset variable is an error.
  std::string path(std::string_view key, std::string_view fallback);
  std::vector<std::string> paths(std::string_view key);  // a list of them; none: empty
  std::int64_t integer(std::string_view key, std::int64_t fallback, std::int64_t min, std::int64_t max);
  double real(std::string_view key, double fallback, double min, double max);  // nan and inf are errors
  bool boolean(std::string_view key, bool fallback);
  std::vector<double> reals(std::string_view key, std::vector<double> fallback);
  std::vector<std::int64_t> integers(std::string_view key, std::vector<std::int64_t> fallback);
  std::vector<std::string> texts(std::string_view key, std::vector<std::string> fallback);

  // Records an error at `key` of this section (file:line are put in front): for checks between values.
  void error(std::string_view key, std::string_view message);
  // The same for a key that must be there and is not: a misspelt one, if there is any, explains more and is said first.
  void missing(std::string_view key, std::string_view message);
  // If the key is given, records a warning: "file.yaml:12: model.dropout has no effect: <why>".
  void no_effect(std::string_view key, std::string_view why);
  std::string where(std::string_view key) const;  // "file.yaml:12: data.train"

  struct Impl;
  explicit ConfigSection(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
