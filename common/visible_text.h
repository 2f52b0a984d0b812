#pragma once

#include <string>
#include <string_view>

namespace ddprun {

// `text` as one line that cannot drive a terminal: control characters are written \n, \r, \t or \x1b.
std::string visible(std::string_view text);

// The same for a sentence about words that somebody gave. Where a carriage return stands in it, it says where that
// comes from: a script with Windows line ends hands one over at the end of its last word.
std::string visible_sentence(std::string_view text);

}  // namespace ddprun
