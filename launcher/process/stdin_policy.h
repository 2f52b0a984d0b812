#pragma once

#include <cstdint>
#include <string_view>

#include "common/result.h"
#include "common/types.h"

namespace ddprun::launcher {

// --stdin: which workers of this node read our standard input; the others have the null device. Pure.
//
// A worker has a session of its own, so a terminal of ours is not its controlling one: the kernel lets it read there
// without being in the foreground, and Ctrl-C stays with us. Several that read at once share the lines.
struct StdinPolicy {
  enum class Kind {
    automatic,  // all on a terminal (a debugger may start on any rank), nobody when we are in its background (it is the
                // shell's then), local rank 0 elsewhere: a pipe or file is read by one
    all,
    none,
    one,
  };
  enum class Source { terminal, background_terminal, other };

  Kind kind = Kind::automatic;
  LocalRank rank{0};  // of Kind::one

  bool gives(LocalRank worker, Source source) const {
    if (kind == Kind::one) return worker == rank;
    if (kind != Kind::automatic) return kind == Kind::all;
    return source == Source::terminal || (source == Source::other && worker == LocalRank(0));
  }
};

// "auto", "first", "all", "none" or a local rank. Errors: invalid_argument.
Result<StdinPolicy> parse_stdin_policy(std::string_view text);

}  // namespace ddprun::launcher
