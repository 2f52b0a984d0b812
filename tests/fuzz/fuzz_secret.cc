// Secret files and identities: no input crashes; what is taken reads back the same; no error quotes a long word of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/peer_identity.h"
#include "common/secret.h"

static void require(bool condition) {
  if (!condition) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto secrets = ddprun::parse_secrets(text);
  if (secrets) {
    require(!secrets->empty() && secrets->size() <= ddprun::kMaxSecrets);
    std::string again;
    for (const auto& secret : *secrets) again += ddprun::format_secret(secret);
    const auto reread = ddprun::parse_secrets(again);
    require(reread && reread->size() == secrets->size());
    for (std::size_t i = 0; i < secrets->size(); ++i) require((*reread)[i] == (*secrets)[i]);
  } else {
    require(!secrets.error().message().empty());
    // No word of ours is so long: what has spaces may be a piece of the sentence itself.
    const std::string end = text.substr(text.size() - std::min<std::size_t>(text.size(), 20));
    const bool word = end.size() == 20 && end.find(' ') == std::string::npos;
    require(!word || secrets.error().message().find(end) == std::string::npos);
  }
  if (const auto offer = ddprun::decode_offer(text)) require(ddprun::encode_offer(*offer) == text);
  const std::string name = ddprun::secret_file_name(text);
  require(name.find('/') == std::string::npos && name.front() != '.' && name.find('\0') == std::string::npos);
  return 0;
}
