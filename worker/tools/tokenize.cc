#include "worker/tools/tokenize.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include "common/options.h"
#include "worker/base/file_bytes.h"
#include "worker/data/tokenizer.h"
#include "worker/report/metrics.h"
#include "worker/tools/subcommand.h"

namespace ddprun::trainer {
namespace {

OptionTable make_table() {
  std::vector<OptionSpec> specs = {make_option("vocabulary", OptionKind::text, "bytes", "bytes|FILE",
                                               "one token a byte, or GPT-2's encoder.json or a .tiktoken file"),
                                   make_option("output", OptionKind::text, "", "PREFIX",
                                               "writes PREFIX.bin and, with --validation-share, PREFIX-validation.bin"),
                                   make_option("validation-share", OptionKind::real, "0", "SHARE",
                                               "this share of the tokens, from the end, goes to the validation file"),
                                   make_option("header", OptionKind::choice, "llmc", "KIND",
                                               "llm.c's header (1024 bytes, checked when read) or none (nanoGPT)")};
  specs[1].short_name = 'o';
  specs[2].min_value = 0;
  specs[2].max_value = 0.9;
  specs[3].choices = {"llmc", "none"};
  return OptionTable("trainer tokenize", "trainer tokenize [--vocabulary V] -o PREFIX FILE...", std::move(specs),
                     RestPolicy::list);
}

Result<void> write_tokens(const std::string& path, std::span<const std::uint16_t> tokens, bool header) {
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) && header) {
    return Error(Errc::invalid_argument,
                 path + ": more than 2^31 - 1 tokens do not fit llm.c's header; use --header none");
  }
  auto file = LineFile::open(path, 0);
  if (!file) return std::move(file).error();
  if (header) {
    std::string head(1024, '\0');
    const std::int32_t words[3] = {20240520, 1, static_cast<std::int32_t>(tokens.size())};
    std::memcpy(head.data(), words, sizeof(words));
    auto written = file->append(head);
    if (!written) return written;
  }
  const std::span<const std::byte> bytes = std::as_bytes(tokens);
  return file->append(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

Result<void> run(const ParsedOptions& options) {
  const std::string& vocabulary = options.text("vocabulary");
  auto tokenizer = vocabulary == "bytes" ? Result<data::Tokenizer>(data::Tokenizer::bytes())
                                         : data::Tokenizer::from_file(vocabulary);
  if (!tokenizer) return std::move(tokenizer).error();
  std::vector<std::uint16_t> tokens;
  std::size_t read_bytes = 0;
  for (const std::string& path : options.rest()) {
    auto bytes = read_file(path, std::size_t{1} << 40, FileKind::any);
    if (!bytes) return std::move(bytes).error();
    if (bytes->empty()) continue;
    if (tokenizer->end_of_text()) tokens.push_back(*tokenizer->end_of_text());
    tokenizer->encode(std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()), tokens);
    read_bytes += bytes->size();
  }
  if (read_bytes == 0 || tokens.empty())
    return Error(Errc::invalid_argument, options.rest()[0] + ": there is no text in it");
  const auto held_back =
      static_cast<std::size_t>(options.real("validation-share") * static_cast<double>(tokens.size()));
  const std::span<const std::uint16_t> all(tokens);
  const bool header = options.text("header") == "llmc";
  const std::string& prefix = options.text("output");
  auto written = write_tokens(prefix + ".bin", all.first(all.size() - held_back), header);
  if (written && held_back > 0) written = write_tokens(prefix + "-validation.bin", all.last(held_back), header);
  if (!written) return written;
  std::printf("%zu bytes -> %zu tokens of a vocabulary of %lld: %zu in %s.bin%s\n", read_bytes, tokens.size(),
              static_cast<long long>(tokenizer->size()), tokens.size() - held_back, prefix.c_str(),
              held_back > 0 ? fmt::format(", {} in {}-validation.bin", held_back, prefix).c_str() : "");
  return {};
}

}  // namespace

int tokenize(std::span<const std::string> arguments) {
  const auto misuse = [](const ParsedOptions& options) -> std::string {
    const bool complete = !options.text("output").empty() && !options.rest().empty();
    return complete ? "" : "needs -o PREFIX and at least one text file (see --help)";
  };
  return run_subcommand("tokenize", make_table(), arguments, misuse, run);
}

}  // namespace ddprun::trainer
