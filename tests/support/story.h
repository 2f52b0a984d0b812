#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

// Stories: text files in which lines before "----" are commands (# is a comment), and lines after it up to an empty
// line are what the machine under test did.
namespace ddprun::test {

// The .txt files of tests/testdata/`folder`, sorted.
std::vector<std::filesystem::path> story_files(const std::string& folder);
// A name that GoogleTest takes: the file's, with _ for what is no letter or digit.
std::string story_name(const std::filesystem::path& file);
// Runs each command by `run` and compares with what the file says, as a GoogleTest expectation. DDPRUN_REWRITE=1 writes
// the file anew instead; review the diff. "BROKEN" in the output is a failure in any case.
void check_story(const std::filesystem::path& file, const std::function<std::string(const std::string&)>& run);

}  // namespace ddprun::test
