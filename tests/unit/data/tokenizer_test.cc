#include "worker/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/split_words.h"

namespace ddprun::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  WordSplitter splitter(text);
  for (std::string_view word = splitter.next(); !word.empty(); word = splitter.next()) words.push_back(word);
  return words;
}

// Pieces as Python's regex module cuts them with GPT-2's pattern (checked by tests/interop/test_data.py too).
TEST(SplitWords, CutsAsGpt2Does) {
  EXPECT_THAT(split_words("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(split_words("it's they'll 'S"), ElementsAre("it", "'s", " they", "'ll", " '", "S"));
  EXPECT_THAT(split_words("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(split_words("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  EXPECT_THAT(split_words("a \n"), ElementsAre("a", " \n"));
  EXPECT_THAT(split_words("5a6!?"), ElementsAre("5", "a", "6", "!?"));
  EXPECT_THAT(split_words(" \xc3\xa9t\xc3\xa9"), ElementsAre(" \xc3\xa9t\xc3\xa9"));
  EXPECT_THAT(split_words("\xff\xfe x"), ElementsAre("\xff\xfe", " x"));
  EXPECT_TRUE(split_words("").empty());
}

TEST(SplitWords, SpacesAreThoseOfPython) {
  EXPECT_THAT(split_words("a\x1c\x1f b"), ElementsAre("a", "\x1c\x1f", " b"));
  EXPECT_THAT(split_words("a\xc2\x85"), ElementsAre("a", "\xc2\x85"));
  EXPECT_THAT(split_words("!\xe1\xa0\x8e!"), ElementsAre("!\xe1\xa0\x8e!")) << "U+180E is none";
  EXPECT_THAT(split_words("!\xe2\x80\x83!"), ElementsAre("!", "\xe2\x80\x83", "!"));
}

TEST(SplitWords, WhatIsNoUtf8IsASign) {
  EXPECT_THAT(split_words("!\xff\xc3"), ElementsAre("!\xff\xc3"));
  EXPECT_THAT(split_words(" \xed\xa0\x80x"), ElementsAre(" \xed\xa0\x80", "x"));        // a surrogate
  EXPECT_THAT(split_words("\xf4\x90\x80\x80 "), ElementsAre("\xf4\x90\x80\x80", " "));  // beyond the last one
  EXPECT_THAT(split_words("\xc3\xa9\xe2\x80"), ElementsAre("\xc3\xa9", "\xe2\x80"));    // cut off
}

// A way back for each character of a run would not fit.
TEST(SplitWords, TakesRunsOfMillions) {
  for (const char* one : {" ", "a", "!", "1", "\xe2\x80\x83", "\xff"}) {
    std::string text;
    for (int i = 0; i < 2'000'000; ++i) text += one;
    const std::size_t words = split_words(text + "\n").size();
    EXPECT_EQ(words, split_words(std::string(one) + one + "\n").size()) << one;
  }
}

TEST(SplitWords, LosesNothing) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text.push_back(static_cast<char>((i * 7919) >> 3));
  std::string joined;
  for (const std::string_view word : split_words(text)) {
    ASSERT_FALSE(word.empty());
    joined += word;
  }
  EXPECT_EQ(joined, text);
}

class VocabularyFile : public ::testing::Test {
 protected:
  VocabularyFile() {
    std::string name = ::testing::TempDir() + "ddprun-vocabulary-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~VocabularyFile() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& text) {
    std::ofstream(folder_ + "/v", std::ios::binary) << text;
    return folder_ + "/v";
  }
  static std::string base64(const std::string& bytes) {
    const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
      unsigned long v = 0;
      for (std::size_t k = 0; k < 3; ++k)
        v = v << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
      for (std::size_t k = 0; k < 4; ++k) out.push_back(i + k <= bytes.size() ? digits[v >> (18 - 6 * k) & 63] : '=');
    }
    return out;
  }
  // All bytes, then "he" = 256, "ll" = 257, "hell" = 258, "lo" = 259.
  static std::string ranks() {
    std::string text;
    for (int b = 0; b < 256; ++b) text += base64(std::string(1, static_cast<char>(b))) + " " + std::to_string(b) + "\n";
    int id = 256;
    for (const char* token : {"he", "ll", "hell", "lo"}) text += base64(token) + " " + std::to_string(id++) + "\n";
    return text;
  }
  std::string folder_;
};

TEST_F(VocabularyFile, MergesTheLowestIdFirst) {
  auto tokenizer = Tokenizer::from_file(write(ranks()));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->size(), 260);
  std::vector<std::uint16_t> tokens;
  tokenizer->encode("hello", tokens);
  EXPECT_THAT(tokens, ElementsAre(258, 'o'));  // he, ll, hell before lo
  tokens.clear();
  tokenizer->encode("hello lolo", tokens);
  EXPECT_THAT(tokens, ElementsAre(258, 'o', ' ', 259, 259));
  EXPECT_EQ(tokenizer->decode(258), "hell");
  EXPECT_FALSE(tokenizer->end_of_text());
}

TEST_F(VocabularyFile, ErrorsNameFileAndLine) {
  const auto error = [this](const std::string& text) {
    auto opened = Tokenizer::from_file(write(text));
    return opened ? std::string("no error") : opened.error().message();
  };
  EXPECT_THAT(error("aGk= 1\nnonsense\n"), HasSubstr("v:2: "));
  EXPECT_THAT(error("aGk= 70000\n"), HasSubstr("v:1: "));
  EXPECT_THAT(error("aGk= 1\n"), HasSubstr("no token for byte 0x00"));
  EXPECT_THAT(error("{\"a\": \"b\"}"), HasSubstr("token 'a'"));
  EXPECT_THAT(error("{"), HasSubstr("not a JSON object"));
  EXPECT_FALSE(Tokenizer::from_file(folder_ + "/none"));
}

TEST(Tokenizer, Bytes) {
  Tokenizer tokenizer = Tokenizer::bytes();
  std::vector<std::uint16_t> tokens;
  tokenizer.encode("A\xff", tokens);
  EXPECT_THAT(tokens, ElementsAre(65, 255));
  EXPECT_EQ(tokenizer.decode(65), "A");
}

}  // namespace
}  // namespace ddprun::data
