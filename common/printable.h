#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Words of others (host names, run ids, paths, error texts) for a terminal, a log or a report: what could drive a
// terminal, hide itself or forge a line is shown as an escape. Pure.
//   \n \r \t by their names; other control characters (also C1, which some terminals take for escape sequences), the
//   marks that turn the direction of writing, and bytes that are no UTF-8 as \xNN. All else stays as it is.
namespace ddprun {

// On one line: nothing of `text` starts a new one.
std::string printable(std::string_view text);
// Newlines and tabs stay, for texts that are ours and have several lines.
std::string printable_lines(std::string_view text);
// As printable(), but colours (ESC [ ... m) are left out instead of shown: for lines that a worker printed.
std::string printable_without_colours(std::string_view text);

// Bytes of the UTF-8 character that `text` begins with; 0 = it begins with none (or is empty).
std::size_t utf8_length(std::string_view text);
// `text` without the character that has only begun at its end: what can be shown now without tearing one.
std::string_view without_torn_end(std::string_view text);

}  // namespace ddprun
