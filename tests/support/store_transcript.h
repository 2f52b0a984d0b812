#pragma once

#include <string>
#include <string_view>
#include <vector>

// Recorded conversations of TCPStore clients and servers; the form is described in tests/testdata/store/README.md.
namespace ddprun::test {

struct TranscriptStep {
  bool from_client = false;
  int connection = 0;
  bool eof = false;        // that side closes
  bool any_order = false;  // a LIST_KEYS answer
  std::string bytes;
  int line = 0;
};

struct Transcript {
  std::string name;
  std::string kind;
  std::vector<TranscriptStep> steps;
};

// All transcripts of tests/testdata/store/<file>. Fails the running test on text that does not parse.
std::vector<Transcript> load_transcripts(std::string_view file);
const Transcript& find_transcript(const std::vector<Transcript>& all, std::string_view name);

std::string hex(std::string_view bytes);
std::string from_hex(std::string_view text);

// The answer of LIST_KEYS with its keys sorted, so that two can be compared.
std::string sorted_key_list(std::string_view reply);

}  // namespace ddprun::test
