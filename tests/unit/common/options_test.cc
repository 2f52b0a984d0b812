#include "common/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

OptionSpec value(std::string name, std::string fallback, std::string env = "") {
  OptionSpec spec;
  spec.name = std::move(name);
  spec.default_text = std::move(fallback);
  spec.env = std::move(env);
  return spec;
}

std::vector<OptionSpec> sample() {
  std::vector<OptionSpec> specs;
  specs.push_back(value("nnodes", "1:1", "PET_NNODES"));
  specs.push_back(value("nproc-per-node", "1", "PET_NPROC_PER_NODE"));
  specs.push_back(value("rdzv-endpoint", "", "PET_RDZV_ENDPOINT"));
  specs.push_back(value("rdzv-id", "none", "PET_RDZV_ID"));
  OptionSpec spec = value("max-restarts", "0", "PET_MAX_RESTARTS");
  spec.kind = OptionKind::integer;
  spec.min_value = 0;
  spec.max_value = 1000;
  specs.push_back(spec);
  spec = value("monitor-interval", "0.1", "PET_MONITOR_INTERVAL");
  spec.kind = OptionKind::real;
  spec.min_value = 0;
  specs.push_back(spec);
  spec = value("start-method", "spawn", "PET_START_METHOD");
  spec.kind = OptionKind::choice;
  spec.choices = {"spawn", "fork", "forkserver"};
  specs.push_back(spec);
  spec = value("standalone", "", "PET_STANDALONE");
  spec.kind = OptionKind::flag;
  spec.help = "one node | no endpoint";
  spec.compatibility = "same";
  specs.push_back(spec);
  spec = value("module", "", "PET_MODULE");
  spec.kind = OptionKind::flag;
  spec.short_name = 'm';
  specs.push_back(spec);
  spec = value("redirects", "0", "PET_REDIRECTS");
  spec.short_name = 'r';
  specs.push_back(spec);
  spec = value("set", "");
  spec.repeatable = true;
  specs.push_back(spec);
  return specs;
}

using Env = std::map<std::string, std::string>;

Result<ParsedOptions> parse(std::vector<std::string> arguments, const Env& env = {},
                            RestPolicy rest = RestPolicy::script_args) {
  const OptionTable table("prog", "prog [options] script", sample(), rest);
  return table.parse(arguments, [&env](const std::string& name) -> std::optional<std::string> {
    const auto found = env.find(name);
    if (found == env.end()) return std::nullopt;
    return found->second;
  });
}

ParsedOptions good(std::vector<std::string> arguments, const Env& env = {}, RestPolicy rest = RestPolicy::script_args) {
  auto parsed = parse(std::move(arguments), env, rest);
  EXPECT_TRUE(parsed) << parsed.error().message();
  return parsed ? *parsed : ParsedOptions();
}

std::string problem(std::vector<std::string> arguments, const Env& env = {},
                    RestPolicy rest = RestPolicy::script_args) {
  auto parsed = parse(std::move(arguments), env, rest);
  EXPECT_FALSE(parsed);
  if (parsed) return "";
  EXPECT_EQ(parsed.error().code(), Errc::invalid_argument);
  return parsed.error().message();
}

TEST(Options, DefaultsHoldWhereNothingIsGiven) {
  const auto options = good({"train.py"});
  EXPECT_EQ(options.text("nnodes"), "1:1");
  EXPECT_EQ(options.integer("max-restarts"), 0);
  EXPECT_DOUBLE_EQ(options.real("monitor-interval"), 0.1);
  EXPECT_FALSE(options.flag("standalone"));
  EXPECT_FALSE(options.given("nnodes"));
  EXPECT_EQ(options.source("nnodes"), "default");
  EXPECT_THAT(options.rest(), ElementsAre("train.py"));
}

TEST(Options, BothSpellingsAndBothValueForms) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"--nproc-per-node=2"},
                                                                 {"--nproc_per_node=2"},
                                                                 {"--nproc-per-node", "2"},
                                                                 {"--nproc_per_node", "2"},
                                                                 {"--nproc-per_node", "2"}}) {
    auto arguments = words;
    arguments.push_back("x.py");
    const auto options = good(arguments);
    EXPECT_EQ(options.text("nproc-per-node"), "2") << words.front();
    EXPECT_EQ(options.source("nproc-per-node"), "--nproc-per-node");
    EXPECT_THAT(options.rest(), ElementsAre("x.py"));
  }
}

TEST(Options, UniqueBeginningsAreEnoughAndTwinSpellingsAreNotAmbiguous) {
  EXPECT_TRUE(good({"--stand", "x"}).flag("standalone"));
  EXPECT_EQ(good({"--redirect=3", "x"}).text("redirects"), "3");
  EXPECT_EQ(good({"--nproc", "4", "x"}).text("nproc-per-node"), "4");  // argparse calls this ambiguous
  EXPECT_EQ(good({"--rdzv_e", "h:1", "x"}).text("rdzv-endpoint"), "h:1");
  const std::string message = problem({"--rdzv", "x"});
  EXPECT_THAT(message, HasSubstr("--rdzv-endpoint"));
  EXPECT_THAT(message, HasSubstr("--rdzv-id"));
}

TEST(Options, ShortOptionsInAllOfArgparsesForms) {
  EXPECT_TRUE(good({"-m", "x"}).flag("module"));
  EXPECT_EQ(good({"-r", "3", "x"}).text("redirects"), "3");
  EXPECT_EQ(good({"-r3", "x"}).text("redirects"), "3");
  EXPECT_EQ(good({"-r=3", "x"}).text("redirects"), "3");
  const auto both = good({"-mr", "0:1", "x"});
  EXPECT_TRUE(both.flag("module"));
  EXPECT_EQ(both.text("redirects"), "0:1");
}

TEST(Options, EverythingAfterTheScriptIsVerbatim) {
  const auto options = good({"--nnodes=1", "train.py", "--nnodes=7", "-m", "", "--", "a b", "--unknown"});
  EXPECT_EQ(options.text("nnodes"), "1");
  EXPECT_THAT(options.rest(), ElementsAre("train.py", "--nnodes=7", "-m", "", "--", "a b", "--unknown"));
}

TEST(Options, OneSeparatorRightBeforeOrAfterTheScriptIsSwallowed) {
  EXPECT_THAT(good({"--", "t.py", "-a"}).rest(), ElementsAre("t.py", "-a"));
  EXPECT_THAT(good({"t.py", "--", "-a"}).rest(), ElementsAre("t.py", "-a"));
  EXPECT_THAT(good({"--", "t.py", "--", "-a"}).rest(), ElementsAre("t.py", "--", "-a"));
  EXPECT_THAT(good({"t.py", "--", "--", "-a"}).rest(), ElementsAre("t.py", "--", "-a"));
  EXPECT_THAT(good({"--", "--odd-name.py"}).rest(), ElementsAre("--odd-name.py"));
  EXPECT_THAT(good({"--standalone", "--"}).rest(), IsEmpty());
}

TEST(Options, RepeatedOptionsTheLastWinsAndRepeatableOnesCollect) {
  const auto options = good({"--nnodes=1", "--nnodes=2", "--set", "a=1", "--set=b=[1,2]", "x"});
  EXPECT_EQ(options.text("nnodes"), "2");
  EXPECT_THAT(options.texts("set"), ElementsAre("a=1", "b=[1,2]"));
  EXPECT_EQ(options.text("set"), "b=[1,2]");
  EXPECT_THAT(good({"x"}).texts("set"), IsEmpty());
}

TEST(Options, OddValuesArriveUnchanged) {
  EXPECT_EQ(good({"--rdzv-endpoint=[::1]:29400", "x"}).text("rdzv-endpoint"), "[::1]:29400");
  EXPECT_EQ(good({"--rdzv-id=[a,b]", "x"}).text("rdzv-id"), "[a,b]");
  EXPECT_EQ(good({"--rdzv-id=", "x"}).text("rdzv-id"), "");
  EXPECT_EQ(good({"--rdzv-id", "", "x"}).text("rdzv-id"), "");
  EXPECT_EQ(good({"--rdzv-id=--x=y", "x"}).text("rdzv-id"), "--x=y");
  EXPECT_EQ(good({"--rdzv-id", "-a b", "x"}).text("rdzv-id"), "-a b");  // argparse: a space makes it a value
  EXPECT_EQ(good({"--rdzv-id", "-5", "x"}).text("rdzv-id"), "-5");      // so does a negative number
  EXPECT_EQ(good({"--rdzv-id", "-", "x"}).text("rdzv-id"), "-");
  EXPECT_EQ(good({"--rdzv-id='q\"", "x"}).text("rdzv-id"), "'q\"");
}

TEST(Options, AMissingValueIsNamed) {
  EXPECT_THAT(problem({"--rdzv-id"}), HasSubstr("--rdzv-id needs a value"));
  EXPECT_THAT(problem({"--rdzv-id", "--standalone", "x"}), HasSubstr("'--standalone' follows"));
  EXPECT_THAT(problem({"-r"}), HasSubstr("-r needs a value"));
  EXPECT_THAT(problem({"--standalone=1", "x"}), HasSubstr("takes no value"));
}

TEST(Options, AnUnknownOptionIsNamedWithTheNearest) {
  EXPECT_THAT(problem({"--nproc-per-nod-e=2", "x"}), HasSubstr("did you mean '--nproc-per-node'"));
  EXPECT_THAT(problem({"--rdzv-endpiont=h", "x"}), HasSubstr("did you mean '--rdzv-endpoint'"));
  EXPECT_THAT(problem({"--nprocs=2", "x"}), HasSubstr("did you mean '--nproc-per-node'"));
  EXPECT_THAT(problem({"-nnodes=2", "x"}), HasSubstr("unknown option '-nnodes=2'"));
  EXPECT_THAT(problem({"--xyzzy", "x"}), HasSubstr("unknown option '--xyzzy'"));
}

TEST(Options, VariablesAreDefaultsAndTheCommandLineWins) {
  const Env env{{"PET_NNODES", "2:4"}, {"PET_MAX_RESTARTS", "3"}, {"PET_STANDALONE", "1"}};
  const auto options = good({"--max-restarts=5", "x"}, env);
  EXPECT_EQ(options.text("nnodes"), "2:4");
  EXPECT_EQ(options.source("nnodes"), "PET_NNODES");
  EXPECT_TRUE(options.given("nnodes"));
  EXPECT_EQ(options.integer("max-restarts"), 5);
  EXPECT_EQ(options.source("max-restarts"), "--max-restarts");
  EXPECT_TRUE(options.flag("standalone"));
  EXPECT_EQ(options.source("standalone"), "PET_STANDALONE");
}

TEST(Options, AnEmptyVariableCountsAsUnset) {
  const auto options = good({"x"}, {{"PET_MAX_RESTARTS", ""}, {"PET_STANDALONE", ""}, {"PET_NNODES", ""}});
  EXPECT_EQ(options.integer("max-restarts"), 0);
  EXPECT_FALSE(options.flag("standalone"));
  EXPECT_FALSE(options.given("nnodes"));
}

TEST(Options, FlagVariablesTakeYesAndNoInWords) {
  for (const char* text : {"1", "true", "TRUE", "yes"}) {
    EXPECT_TRUE(good({"x"}, {{"PET_STANDALONE", text}}).flag("standalone")) << text;
  }
  for (const char* text : {"0", "false", "No"}) {
    const auto options = good({"x"}, {{"PET_STANDALONE", text}});
    EXPECT_FALSE(options.flag("standalone")) << text;
    EXPECT_EQ(options.source("standalone"), "PET_STANDALONE");
  }
  EXPECT_THAT(problem({"x"}, {{"PET_STANDALONE", "maybe"}}), HasSubstr("PET_STANDALONE: 'maybe'"));
}

TEST(Options, ChoicesAndRangesAreCheckedOnTheCommandLineAndInTheEnvironment) {
  EXPECT_THAT(problem({"--start-method=frok", "x"}), HasSubstr("--start-method: 'frok' is not one of spawn, fork"));
  EXPECT_THAT(problem({"--start-method=frok", "x"}), HasSubstr("did you mean 'fork'"));
  EXPECT_THAT(problem({"x"}, {{"PET_START_METHOD", "bogus"}}), HasSubstr("PET_START_METHOD: 'bogus'"));
  EXPECT_THAT(problem({"--max-restarts=-1", "x"}), HasSubstr("'-1' is outside of 0 to 1000"));
  EXPECT_THAT(problem({"--max-restarts", "-1", "x"}), HasSubstr("'-1'"));
  EXPECT_THAT(problem({"--max-restarts=3x", "x"}), HasSubstr("'3x' is not a whole number"));
  EXPECT_THAT(problem({"--max-restarts=99999999999999999999", "x"}), HasSubstr("not a whole number"));
  EXPECT_THAT(problem({"x"}, {{"PET_MAX_RESTARTS", "many"}}), HasSubstr("PET_MAX_RESTARTS: 'many'"));
  EXPECT_THAT(problem({"--monitor-interval=nan", "x"}), HasSubstr("not a number"));
  EXPECT_THAT(problem({"--monitor-interval=-0.5", "x"}), HasSubstr("below 0"));
  EXPECT_DOUBLE_EQ(good({"--monitor-interval", "1e-2", "x"}).real("monitor-interval"), 0.01);
  EXPECT_EQ(good({"--max-restarts=+3", "x"}).integer("max-restarts"), 3);
}

TEST(Options, AWrongVariableDoesNotMatterWhereTheCommandLineSpeaks) {
  EXPECT_EQ(good({"--max-restarts=1", "x"}, {{"PET_MAX_RESTARTS", "many"}}).integer("max-restarts"), 1);
}

TEST(Options, HelpAndVersionWinOverEverythingElse) {
  EXPECT_TRUE(good({"--help"}).flag("help"));
  EXPECT_TRUE(good({"-h"}).flag("help"));
  EXPECT_TRUE(good({"--bogus", "--help"}).flag("help"));
  EXPECT_TRUE(good({"--version"}, {{"PET_MAX_RESTARTS", "many"}}).flag("version"));
  EXPECT_FALSE(good({"train.py", "--help"}).flag("help"));
}

TEST(Options, PositionalsByPolicy) {
  EXPECT_THAT(problem({"stray"}, {}, RestPolicy::none), HasSubstr("'stray'"));
  const auto list = good({"get", "--nnodes=2", "key", "--", "--odd"}, {}, RestPolicy::list);
  EXPECT_EQ(list.text("nnodes"), "2");
  EXPECT_THAT(list.rest(), ElementsAre("get", "key", "--odd"));
}

TEST(Options, HelpListsEveryOptionVariableAndDefault) {
  const OptionTable table("prog", "prog [options] script", sample(), RestPolicy::script_args);
  const std::string help = table.help();
  for (const OptionSpec& spec : table.options()) {
    EXPECT_THAT(help, HasSubstr("--" + spec.name));
    EXPECT_THAT(help, HasSubstr(spec.env));
  }
  EXPECT_THAT(help, HasSubstr("Usage: prog [options] script"));
  EXPECT_THAT(help, HasSubstr("spawn|fork|forkserver"));
  EXPECT_THAT(help, HasSubstr("[default: 1:1]"));
  EXPECT_THAT(help, HasSubstr("-r, --redirects"));
}

TEST(Options, MarkdownHasOneRowAnOptionAndEscapesBars) {
  const OptionTable table("prog", "prog", sample(), RestPolicy::none);
  const std::string rows = table.markdown();
  EXPECT_EQ(static_cast<std::size_t>(std::count(rows.begin(), rows.end(), '\n')), table.options().size());
  EXPECT_THAT(rows, HasSubstr("| `--standalone` | `PET_STANDALONE` |  | same | one node \\| no endpoint |"));
}

TEST(NearestName, FindsTypingErrorsAndNothingFarAway) {
  const std::vector<std::string> names{"learning_rate", "lr", "momentum", "batch_size"};
  EXPECT_EQ(nearest_name("momentun", names), "momentum");
  EXPECT_EQ(nearest_name("batchsize", names), "batch_size");
  EXPECT_EQ(nearest_name("learnign_rate", names), "learning_rate");
  EXPECT_EQ(nearest_name("rl", names), "lr");
  EXPECT_EQ(nearest_name("zzz", names), std::nullopt);
  EXPECT_EQ(nearest_name("", names), std::nullopt);
}

TEST(Version, NamesWhatWasBuilt) {
  const std::string text = version_text("ddprun");
  EXPECT_THAT(text, HasSubstr("ddprun 0."));
  EXPECT_THAT(text, HasSubstr("commit:"));
  EXPECT_THAT(text, HasSubstr("Boost:    1."));
  EXPECT_THAT(text, HasSubstr("CUDA"));
}

TEST(Options, ACarriageReturnComesWithItsCause) {
  EXPECT_EQ(usage_sentence("no 'x'"), "no 'x'");
  EXPECT_THAT(usage_sentence("no 'x\r'"),
              testing::AllOf(testing::StartsWith("no 'x\\r' ("), testing::HasSubstr("Windows line ends")));
}

}  // namespace
TEST(OptionHelp, GroupsShowTheUsualOptionsAndAllOnDemand) {
  HelpLayout layout;
  layout.examples = "  prog --first=1 script\n";
  layout.groups = {{"Often", {"second", "first"}}, {"Help", {"help", "help-all"}}};
  std::vector<OptionSpec> options = {make_option("first", OptionKind::integer, "3", "N", "the first"),
                                     make_option("second", OptionKind::flag, "", "", "the second"),
                                     make_option("seldom", OptionKind::text, "", "WORD", "for few")};
  const OptionTable table("prog", "prog [options]", std::move(options), RestPolicy::list, std::move(layout));
  const std::string help = table.help();
  EXPECT_THAT(help, StartsWith("Usage: prog [options]\n\nExamples:\n  prog --first=1 script\n\nOften:\n  --second\n"));
  EXPECT_THAT(help, HasSubstr("  --first N\n      the first [default: 3]\n\nHelp:\n  -h, --help\n"));
  EXPECT_THAT(help, HasSubstr("\n2 more options: --help-all."));  // seldom and version
  EXPECT_THAT(help, Not(HasSubstr("--seldom")));
  EXPECT_THAT(table.help_all(), AllOf(HasSubstr("\nRare options:\n  --seldom WORD\n"), HasSubstr("--second")));
  const auto no_environment = [](const std::string&) { return std::optional<std::string>(); };
  const std::vector<std::string> words = {"--bogus", "--help-all"};
  const auto parsed = table.parse(words, no_environment);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_TRUE(parsed->flag("help-all"));
}

TEST(OptionHelp, ATableWithoutGroupsHasNoHelpAll) {
  const OptionTable table("prog", "prog", {}, RestPolicy::list);
  EXPECT_THAT(table.help(), Not(HasSubstr("--help-all")));
  EXPECT_EQ(table.help(), table.help_all());
}

}  // namespace ddprun
