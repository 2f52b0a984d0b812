#include "launcher/ctl/secret.h"

#include "common/exit_code.h"
#include "common/log.h"
#include "common/options.h"
#include "common/peer_identity.h"
#include "common/printable.h"
#include "common/secret.h"
#include "common/standard_fds.h"

namespace ddprun::launcher {
namespace {

constexpr const char* kHelp =
    "\nVerbs:\n"
    "  new FILE    a new secret in a new file of mode 600, for --rdzv-secret-file, a --secrets-dir or\n"
    "              --operator-secret-file; never writes over a file\n"
    "  show FILE   the id of each secret in it, as messages name them; tells nothing of the secret itself\n";

int fail(int code, const std::string& text) {
  say("ddpctl: " + usage_sentence(printable(text)));
  return code;
}

int make(const std::string& path) {
  if (auto made = create_secret_file(path); !made) return fail(exit_code::kFailure, made.error().message());
  auto secrets = read_secrets(path, "secret new");
  const auto id = secrets ? key_id(secrets->front()) : Result<std::string>(secrets.error());
  if (!id) return fail(exit_code::kFailure, id.error().message());
  print_output(printable(path) + ": key " + *id + "\n");
  return exit_code::kOk;
}

int show(const std::string& path) {
  const auto secrets = read_secrets(path, "secret show");
  if (!secrets) return fail(exit_code::kFailure, secrets.error().message());
  bool first = true;
  for (const Key& secret : *secrets) {
    const auto id = key_id(secret);
    if (!id) return fail(exit_code::kFailure, id.error().message());
    print_output("key " + *id + (first ? " (signs)\n" : " (verifies only)\n"));
    first = false;
  }
  return exit_code::kOk;
}

}  // namespace

int ctl_secret(std::span<const std::string> arguments) {
  const OptionTable table("ddpctl secret", "ddpctl secret new|show FILE", {}, RestPolicy::list);
  const auto parsed = table.parse(arguments, process_environment());
  if (!parsed) return fail(exit_code::kUsage, parsed.error().message());
  if (parsed->flag("help")) return print_output(table.help() + kHelp), exit_code::kOk;
  const auto& words = parsed->rest();
  if (words.size() == 2 && words[0] == "new") return make(words[1]);
  if (words.size() == 2 && words[0] == "show") return show(words[1]);
  return fail(exit_code::kUsage, "secret: say 'new FILE' or 'show FILE'");
}

}  // namespace ddprun::launcher
