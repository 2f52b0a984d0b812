#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

// One table per program: flags, PET_* variables, help, the README's list and "did you mean" all come from it.
// Without CLI11: torchrun's rules (hyphen or underscore, unique beginnings, the end of options at the script, a
// variable per option, one sentence per mistake) are all that parsing is here, and a library only kept what they had
// found.
namespace ddprun {

enum class OptionKind { flag, text, integer, real, choice };

struct OptionSpec {
  std::string name;        // "nproc-per-node"; the underscore spelling works too
  char short_name = '\0';  // 'm'
  OptionKind kind = OptionKind::text;
  std::string default_text;  // what text()/integer()/real() give when it is not given; "" = none
  std::string env;           // "PET_NPROC_PER_NODE"; "" = none. Set but empty counts as unset
  std::string value_name;    // "N" in the help
  std::string help;
  std::vector<std::string> choices;            // for OptionKind::choice
  std::optional<double> min_value, max_value;  // for integer and real
  bool repeatable = false;                     // texts() gives all; others: the last one wins
  std::string compatibility;  // for the README's table: "same", "better: how", "new: what", "refused: why"
};

// A row of a table; what is rarer is set afterwards.
OptionSpec make_option(std::string name, OptionKind kind, std::string default_text, std::string value_name,
                       std::string help);

enum class RestPolicy {
  none,         // positional arguments are an error
  script_args,  // the first positional is the script, all after it is passed through verbatim
  list,         // positionals may stand anywhere and are collected
};

using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;
EnvLookup process_environment();

class ParsedOptions {
 public:
  bool flag(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  const std::vector<std::string>& texts(std::string_view name) const;  // of a repeatable option
  bool given(std::string_view name) const;                             // on the command line or in the environment
  std::string source(std::string_view name) const;  // "--nnodes", "PET_NNODES" or "default": for error messages
  // Where nobody has given it: its value, and where that comes from. As if it had been given from then on.
  void fill(std::string_view name, std::string text, std::string source);
  const std::vector<std::string>& rest() const { return rest_; }  // script and its arguments, or the positionals

  struct Value {
    std::string text;
    std::vector<std::string> texts;
    std::string source = "default";
    bool given = false;
  };

 private:
  friend class OptionTable;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<std::string> rest_;
};

struct HelpGroup {
  std::string title;
  std::vector<std::string> options;  // names, in the order of the help
};

// How --help shows a long table: examples first, then groups. What no group names is rare and shown by --help-all only,
// which such a table has as well. Without groups: one list of all.
struct HelpLayout {
  std::string examples;  // lines
  std::vector<HelpGroup> groups;
};

class OptionTable {
 public:
  // `synopsis`: "ddprun [options] program [arguments]". --help and --version are added to every table.
  OptionTable(std::string program, std::string synopsis, std::vector<OptionSpec> options, RestPolicy rest,
              HelpLayout layout = {});

  // `arguments` without argv[0]. On --help, --help-all or --version the result's flag of that name is set and
  // nothing else is checked. Errors: invalid_argument, one sentence: which option (or variable), which value, why, what
  // to do; an unknown option comes with the nearest known one.
  Result<ParsedOptions> parse(std::span<const std::string> arguments, const EnvLookup& env) const;

  std::string help() const;      // for --help
  std::string help_all() const;  // for --help-all
  // Table rows for the README, without a head: | option | variable | default | compatibility | help |
  std::string markdown() const;
  const std::vector<OptionSpec>& options() const { return options_; }

 private:
  std::string program_, synopsis_;
  std::vector<OptionSpec> options_;
  RestPolicy rest_policy_;
  HelpLayout layout_;
};

// The candidate nearest to `word` by edit distance, if near enough to be a likely typo.
std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> candidates);

// A sentence about words that somebody gave, on one line that cannot drive a terminal. Where a carriage return stands
// in it, it says where that comes from: a script with Windows line ends hands one over at the end of its last word.
std::string usage_sentence(std::string_view text);

// Text of --version: version, commit, compiler, Boost, CUDA/NCCL found or not at build time.
std::string version_text(std::string_view program);

}  // namespace ddprun
