#include "tests/support/store_transcript.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "common/store_protocol.h"
#include "common/wire.h"

namespace ddprun::test {

std::string hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::string from_hex(std::string_view text) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1])));
  }
  return bytes;
}

std::string sorted_key_list(std::string_view reply) {
  WireReader reader(reply);
  const std::int64_t count = reader.i64();
  std::vector<std::string> keys;
  while (reader.remaining() > 0 && !reader.failed()) keys.emplace_back(reader.blob(kStoreMaxKeyBytes));
  if (reader.failed() || count != std::ssize(keys)) return "no key list: " + hex(reply);
  std::sort(keys.begin(), keys.end());
  std::string text;
  for (const std::string& key : keys) text += key + '\n';
  return text;
}

std::vector<Transcript> load_transcripts(std::string_view file) {
  const std::string path = std::string(DDPRUN_SOURCE_DIR "/tests/testdata/store/") + std::string(file);
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  std::vector<Transcript> all;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "transcript") {
      Transcript transcript;
      words >> transcript.name >> transcript.kind;
      all.push_back(std::move(transcript));
      continue;
    }
    TranscriptStep step;
    step.line = number;
    step.from_client = first == ">";
    std::string body;
    words >> step.connection >> body;
    if (body == "keys") {
      step.any_order = true;
      words >> body;
    }
    step.eof = body == "eof";
    if (!step.eof) step.bytes = from_hex(body);
    EXPECT_TRUE((first == ">" || first == "<") && !all.empty()) << path << ":" << number;
    if (all.empty()) break;
    all.back().steps.push_back(std::move(step));
  }
  EXPECT_FALSE(all.empty()) << path;
  return all;
}

const Transcript& find_transcript(const std::vector<Transcript>& all, std::string_view name) {
  const auto it = std::find_if(all.begin(), all.end(), [&](const Transcript& t) { return t.name == name; });
  EXPECT_NE(it, all.end()) << name;
  return *it;
}

}  // namespace ddprun::test
