// YAML text, then --set assignments after NUL bytes: no input may crash, hang or give an error without words.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/config.h"

using ddprun::Config;
using ddprun::ConfigSection;

static void require(bool condition) {
  if (!condition) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  std::string assignments;
  if (const auto nul = text.find('\0'); nul != std::string::npos) {
    assignments = text.substr(nul + 1);
    text.resize(nul);
  }
  auto config = Config::parse(text, "f.yaml");
  if (!config) {
    require(config.error().message().starts_with("f.yaml"));
    return 0;
  }
  while (!assignments.empty()) {
    const auto nul = assignments.find('\0');
    const auto result = config->override_value(assignments.substr(0, nul));
    require(result || result.error().message().starts_with("--set"));
    assignments = nul == std::string::npos ? "" : assignments.substr(nul + 1);
  }
  ConfigSection root = config->root();
  ConfigSection section = root.section("optimizer");
  const double lr = section.real("lr", 0.1, 0, 10);
  require(lr >= 0 && lr <= 10);
  const auto steps = root.integer("steps", 5, 1, 100);
  require(steps >= 1 && steps <= 100);
  (void)root.section("loss", "name").text("name", "mse");
  (void)root.choice("mode", "a", {"a", "b"});
  (void)root.boolean("flag", false);
  (void)root.reals("betas", {});
  (void)root.integers("widths", {});
  (void)root.texts("words", {});
  (void)root.path("path", "");
  (void)root.where("path");
  const auto finished = config->finish();
  require(finished || !finished.error().message().empty());
  return 0;
}
