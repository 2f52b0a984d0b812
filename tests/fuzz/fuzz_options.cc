// Arguments separated by NUL bytes; one that starts with 'E' and holds '=' goes to the environment. What is parsed must
// be in range; what is not must be an error with words. Endpoint::parse sees each argument too.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/types.h"

using namespace ddprun;  // NOLINT: a test

static void require(bool condition) {
  if (!condition) std::abort();
}

static OptionTable make_table() {
  std::vector<OptionSpec> specs(6);
  specs[0].name = "nproc-per-node";
  specs[0].env = "PET_NPROC_PER_NODE";
  specs[0].default_text = "1";
  specs[1].name = "max-restarts";
  specs[1].kind = OptionKind::integer;
  specs[1].default_text = "0";
  specs[1].min_value = 0;
  specs[1].max_value = 9;
  specs[1].env = "PET_MAX_RESTARTS";
  specs[2].name = "monitor-interval";
  specs[2].kind = OptionKind::real;
  specs[2].default_text = "0.1";
  specs[2].min_value = 0;
  specs[3].name = "standalone";
  specs[3].kind = OptionKind::flag;
  specs[3].short_name = 's';
  specs[3].env = "PET_STANDALONE";
  specs[4].name = "method";
  specs[4].kind = OptionKind::choice;
  specs[4].choices = {"spawn", "fork"};
  specs[4].default_text = "spawn";
  specs[5].name = "set";
  specs[5].repeatable = true;
  specs[5].short_name = 'r';
  return OptionTable("f", "f", specs, RestPolicy::script_args);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const OptionTable table = make_table();
  std::vector<std::string> arguments;
  std::map<std::string, std::string> env;
  std::string word;
  for (std::size_t i = 0; i <= size; ++i) {
    if (i < size && data[i] != 0) {
      word.push_back(static_cast<char>(data[i]));
      continue;
    }
    if (const auto endpoint = Endpoint::parse(word, 29400)) {
      const auto again = Endpoint::parse(endpoint->to_string(), 1);
      require(again.has_value() && *again == *endpoint);
    }
    const auto equals = word.find('=');
    if (!word.empty() && word.front() == 'E' && equals != std::string::npos) {
      env[word.substr(1, equals - 1)] = word.substr(equals + 1);
    } else {
      arguments.push_back(word);
    }
    word.clear();
  }
  const auto parsed = table.parse(arguments, [&env](const std::string& name) -> std::optional<std::string> {
    const auto found = env.find(name);
    if (found == env.end()) return std::nullopt;
    return found->second;
  });
  if (!parsed) {
    require(!parsed.error().message().empty());
    return 0;
  }
  if (parsed->flag("help") || parsed->flag("version")) return 0;
  require(parsed->integer("max-restarts") >= 0 && parsed->integer("max-restarts") <= 9);
  require(parsed->real("monitor-interval") >= 0);
  require(parsed->text("method") == "spawn" || parsed->text("method") == "fork");
  require(parsed->rest().size() <= arguments.size());
  return 0;
}
