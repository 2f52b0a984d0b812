#include "common/secret.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/unique_fd.h"

namespace ddprun {

namespace {

constexpr std::string_view kTag = "ddprun-secret-1";
constexpr std::size_t kBase64Bytes = 44;  // of 32 bytes, with one '=' at the end

bool is_word(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' || c == '-';
}

Error bad_line(std::size_t line, const std::string& why) {
  return Error(Errc::malformed, "line " + std::to_string(line) + ": " + why);
}

// Only what we would write ourselves: two spellings of one secret are one too many.
bool decode(std::string_view base64, Key& key) {
  if (base64.size() != kBase64Bytes) return false;
  std::string bytes(kBase64Bytes, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(base64.data()), kBase64Bytes);
  if (size == static_cast<int>(kKeyBytes) + 1) key = Key(std::string_view(bytes).substr(0, kKeyBytes));
  wipe(bytes);
  if (size != static_cast<int>(kKeyBytes) + 1) return false;
  std::string again = format_secret(key);
  const bool same = same_bytes(std::string_view(again).substr(kTag.size() + 1, kBase64Bytes), base64);
  wipe(again);
  return same;
}

Result<void> check_owner(const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return Error(Errc::invalid_argument, "it is no regular file");
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return Error(Errc::invalid_argument, "it belongs to uid " + std::to_string(info.st_uid) + ", not to uid " +
                                             std::to_string(::geteuid()) + " who reads it: chown it");
  }
  if ((info.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%03o", static_cast<unsigned>(info.st_mode & 0777));
    return Error(Errc::invalid_argument, std::string("others may read or change it (mode ") + mode + "): chmod 600 it");
  }
  if (info.st_size > static_cast<off_t>(kMaxSecretFileBytes)) {
    return Error(Errc::malformed, "it has " + std::to_string(info.st_size) + " bytes; a file of secrets has at most " +
                                      std::to_string(kMaxSecretFileBytes));
  }
  return Result<void>();
}

Result<std::string> read_text(const std::string& path) {
  // O_NONBLOCK: a FIFO of that name must not hold us until somebody writes.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!fd && errno == ELOOP) {
    return Error(Errc::invalid_argument, "it is a symbolic link, which somebody else may turn: name the file itself");
  }
  if (!fd) return Error::from_errno(errno, "it cannot be opened");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Error::from_errno(errno, "it cannot be looked at");
  if (auto fine = check_owner(info); !fine) return std::move(fine).error();
  std::string text(kMaxSecretFileBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "it cannot be read");
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kMaxSecretFileBytes) return Error(Errc::malformed, "it grows while it is read");
  text.resize(size);
  return text;
}

}  // namespace

Result<Secrets> parse_secrets(std::string_view text) {
  if (text.size() > kMaxSecretFileBytes) return Error(Errc::malformed, "more than 4096 bytes");
  Secrets secrets;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    if (!line.starts_with(kTag) || line.size() == kTag.size() || line[kTag.size()] != ' ') {
      return bad_line(number,
                      "it does not begin with '" + std::string(kTag) + " ' (ddpctl secret new makes such a file)");
    }
    Key key;
    if (!decode(line.substr(kTag.size() + 1), key)) {
      return bad_line(number, "what follows '" + std::string(kTag) + " ' is no base64 of 32 bytes (44 characters)");
    }
    for (const Key& other : secrets) {
      if (other == key) return bad_line(number, "the same secret twice");
    }
    if (secrets.size() == kMaxSecrets) {
      return bad_line(number, "more than " + std::to_string(kMaxSecrets) + " secrets: take out the old ones");
    }
    secrets.push_back(key);
  }
  if (secrets.empty()) return Error(Errc::malformed, "no secret is in it (ddpctl secret new makes such a file)");
  return secrets;
}

std::string format_secret(const Key& secret) {
  std::string base64(kBase64Bytes + 1, '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(base64.data()),
                  reinterpret_cast<const unsigned char*>(secret.bytes().data()), static_cast<int>(kKeyBytes));
  base64.resize(kBase64Bytes);
  std::string line = std::string(kTag) + " " + base64 + "\n";
  wipe(base64);
  return line;
}

Result<Secrets> read_secrets(const std::string& path, std::string_view what) {
  const std::string where = std::string(what) + " " + path;
  auto text = read_text(path);
  if (!text) return std::move(text).error().with_context(where);
  auto secrets = parse_secrets(*text);
  wipe(*text);
  if (!secrets) return std::move(secrets).error().with_context(where);
  return secrets;
}

Result<void> create_secret_file(const std::string& path) {
  auto key = random_key();
  if (!key) return std::move(key).error();
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd && errno == EEXIST) {
    return Error(Errc::invalid_argument, path +
                                             " is there already: a secret in use is never written over; to rotate, "
                                             "make a new file and put its line first in the old one");
  }
  if (!fd) return Error::from_errno(errno, path + " cannot be made");
  std::string line = format_secret(*key);
  const auto failed = [&](const char* step) {
    Error error = Error::from_errno(errno, path + " cannot be " + step);
    ::unlink(path.c_str());
    return error;
  };
  // A umask takes bits away and a default ACL may set others.
  if (::fchmod(fd.get(), 0600) != 0) return failed("made readable for us alone");
  const ssize_t written = ::write(fd.get(), line.data(), line.size());
  const bool whole = written == static_cast<ssize_t>(line.size());
  wipe(line);
  if (written >= 0 && !whole) errno = ENOSPC;
  if (!whole || ::fsync(fd.get()) != 0) return failed("written");
  return Result<void>();
}

std::string secret_file_name(std::string_view run_id) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string name;
  for (const char c : run_id) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_word(byte) && !(name.empty() && byte == '.')) {
      name.push_back(c);
    } else {
      name += '%';
      name += kHex[byte >> 4];
      name += kHex[byte & 15];
    }
  }
  return (name.empty() ? "%" : name) + ".secret";
}

}  // namespace ddprun
