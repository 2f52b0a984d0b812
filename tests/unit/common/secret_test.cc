// Secret files, derived keys, sealed texts: known answers and every refusal.
#include "common/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/secret_folder.h"
#include "tests/support/common_temp_dir.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    text += two;
  }
  return text;
}

Key key_of(char c) { return Key(std::string(32, c)); }

std::string secret_file(const testing::TempDir& dir, const std::string& name, const std::string& text, mode_t mode) {
  const std::string path = dir.write(name, text);
  EXPECT_EQ(::chmod(path.c_str(), mode), 0);
  return path;
}

std::string refusal(const std::string& path) {
  const auto secrets = read_secrets(path, "--rdzv-secret-file");
  EXPECT_FALSE(secrets);
  return secrets ? "taken" : secrets.error().message();
}

TEST(Crypto, HmacOfRfc4231) {
  // Test case 2 has a shorter key, which HMAC fills up with zeros.
  const auto digest = hmac_sha256(Key("Jefe" + std::string(28, '\0')), "what do ya want for nothing?");
  ASSERT_TRUE(digest);
  EXPECT_EQ(hex(*digest), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

// Made with: python3 -c 'import hmac,hashlib; p=hmac.new(b"ddprun-1",bytes(range(32)),hashlib.sha256).digest();
//   print(hmac.new(p,b"tls 1.3 psk\0agent:job7"+b"\x01",hashlib.sha256).hexdigest())'
TEST(Crypto, DerivedKeysAreHkdf) {
  std::string bytes;
  for (int i = 0; i < 32; ++i) bytes.push_back(static_cast<char>(i));
  const auto key = derive_key(Key(bytes), "agent:job7", "tls 1.3 psk");
  ASSERT_TRUE(key);
  EXPECT_EQ(hex(key->bytes()), "a32c67b3b27f0dbd30719afcb3ce19ea6cadfc8693d4fc8a988830ada1c30b5a");
}

TEST(Crypto, EachLabelAndContextHasItsOwnKey) {
  const Key secret = key_of('s');
  const Key one = *derive_key(secret, "ab", "c");
  EXPECT_FALSE(one == *derive_key(secret, "b", "ca"));
  EXPECT_FALSE(one == *derive_key(secret, "ab", "d"));
  EXPECT_FALSE(one == *derive_key(key_of('t'), "ab", "c"));
  EXPECT_TRUE(one == *derive_key(secret, "ab", "c"));
}

TEST(Crypto, SealedTextsOpenOnlyWithTheirKeyAndPurpose) {
  const auto sealed = seal(key_of('k'), "an id", "round 3");
  ASSERT_TRUE(sealed);
  EXPECT_EQ(sealed->size(), 5 + kSealOverhead);
  EXPECT_EQ(*open_sealed(key_of('k'), *sealed, "round 3"), "an id");
  EXPECT_FALSE(open_sealed(key_of('j'), *sealed, "round 3"));
  EXPECT_FALSE(open_sealed(key_of('k'), *sealed, "round 4"));
  for (std::size_t i = 0; i < sealed->size(); ++i) {
    std::string changed = *sealed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(open_sealed(key_of('k'), changed, "round 3")) << i;
    EXPECT_FALSE(open_sealed(key_of('k'), sealed->substr(0, i), "round 3")) << i;
  }
  EXPECT_NE(*sealed, *seal(key_of('k'), "an id", "round 3"));
  const auto nothing = seal(key_of('k'), "", "");
  EXPECT_EQ(*open_sealed(key_of('k'), *nothing, ""), "");
}

TEST(Secret, ANewFileReadsBackAndIsForUsAlone) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/job.secret";
  ASSERT_TRUE(create_secret_file(path));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto secrets = read_secrets(path, "--rdzv-secret-file");
  ASSERT_TRUE(secrets) << secrets.error().message();
  EXPECT_EQ(secrets->size(), 1u);
  const auto again = create_secret_file(path);
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message(), HasSubstr("is there already"));
  EXPECT_TRUE(read_secrets(path, "")->front() == secrets->front());
}

TEST(Secret, SeveralLinesAreARotation) {
  const std::string text = "# new\n" + format_secret(key_of('n')) + "\n" + format_secret(key_of('o'));
  const auto secrets = parse_secrets(text);
  ASSERT_TRUE(secrets) << secrets.error().message();
  ASSERT_EQ(secrets->size(), 2u);
  EXPECT_TRUE((*secrets)[0] == key_of('n'));
  EXPECT_TRUE((*secrets)[1] == key_of('o'));
}

TEST(Secret, BadLinesAreNamedAndNeverQuoted) {
  const std::string good = format_secret(key_of('x'));
  const std::pair<std::string, const char*> cases[] = {
      {"", "no secret is in it"},
      {"\n# only words\n", "no secret is in it"},
      {"hunter2\n", "line 1: it does not begin with 'ddprun-secret-1 '"},
      {"ddprun-secret-1\n", "line 1: it does not begin with"},
      {"ddprun-secret-2 " + good.substr(16), "line 1: it does not begin with"},
      {good + "ddprun-secret-1 hunter2\n", "line 2: what follows 'ddprun-secret-1 ' is no base64 of 32 bytes"},
      {good.substr(0, good.size() - 2) + "\n", "line 1: what follows"},      // a '=' is missing
      {good.substr(0, good.size() - 3) + "5=\n", "line 1: what follows"},    // bits behind the end
      {good.substr(0, 20) + "!" + good.substr(21), "line 1: what follows"},  // no base64
      {good.substr(0, 16) + " " + good.substr(16), "line 1: what follows"},  // two blanks
      {good + good, "line 2: the same secret twice"},
      {std::string(5000, '#'), "more than 4096 bytes"},
  };
  for (const auto& [text, expected] : cases) {
    const auto secrets = parse_secrets(text);
    ASSERT_FALSE(secrets) << text;
    EXPECT_THAT(secrets.error().message(), HasSubstr(expected)) << text;
    EXPECT_THAT(secrets.error().message(), Not(HasSubstr("hunter2")));
    EXPECT_THAT(secrets.error().message(), Not(HasSubstr(good.substr(16, 20))));
  }
  std::string many;
  for (char c = 'a'; c <= 'i'; ++c) many += format_secret(key_of(c));
  EXPECT_THAT(parse_secrets(many).error().message(), HasSubstr("line 9: more than 8 secrets"));
}

TEST(Secret, FilesThatOthersCouldTouchAreRefused) {
  const testing::TempDir dir;
  const std::string line = format_secret(key_of('x'));
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0660}) {
    const std::string text = refusal(secret_file(dir, "open", line, mode));
    EXPECT_THAT(text, HasSubstr("--rdzv-secret-file " + dir.path() + "/open: others may read or change it")) << mode;
    EXPECT_THAT(text, HasSubstr("chmod 600"));
  }
  const std::string good = secret_file(dir, "good", line, 0400);
  EXPECT_TRUE(read_secrets(good, ""));
  std::filesystem::create_symlink(good, dir.path() + "/link");
  EXPECT_THAT(refusal(dir.path() + "/link"), HasSubstr("symbolic link"));
  EXPECT_THAT(refusal(dir.path()), HasSubstr("no regular file"));
  EXPECT_THAT(refusal(dir.path() + "/none"), HasSubstr("No such file"));
  ASSERT_EQ(::mkfifo((dir.path() + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(refusal(dir.path() + "/fifo"), HasSubstr("no regular file"));  // and nobody waits for a writer
  EXPECT_THAT(refusal(secret_file(dir, "long", std::string(5000, '\n'), 0600)), HasSubstr("at most 4096"));
}

TEST(Secret, AFileOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const testing::TempDir dir;
  const std::string path = secret_file(dir, "theirs", format_secret(key_of('x')), 0600);
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal(path), HasSubstr("it belongs to uid 12345, not to uid 0"));
}

TEST(Secret, RunIdsCannotLeaveTheFolder) {
  EXPECT_EQ(secret_file_name("job-7_a.b"), "job-7_a.b.secret");
  EXPECT_EQ(secret_file_name("../../etc/passwd"), "%2E.%2F..%2Fetc%2Fpasswd.secret");
  EXPECT_EQ(secret_file_name(".hidden"), "%2Ehidden.secret");
  EXPECT_EQ(secret_file_name("a%2Fb"), "a%252Fb.secret");
  EXPECT_EQ(secret_file_name(""), "%.secret");
}

PeerIdentity agent(const std::string& run_id) { return PeerIdentity{PeerRole::agent, run_id}; }

TEST(SecretFolder, AJobsOwnFileGoesBeforeTheDefault) {
  const testing::TempDir dir;
  secret_file(dir, "job7.secret", format_secret(key_of('7')), 0600);
  secret_file(dir, "default.secret", format_secret(key_of('d')), 0600);
  SecretPlaces places;
  places.folder = dir.path();
  ASSERT_TRUE(check_secrets(places));
  const SecretFinder find = secret_finder(places);
  EXPECT_TRUE(find(agent("job7"))->front() == key_of('7'));
  EXPECT_TRUE(find(agent("other"))->front() == key_of('d'));
  EXPECT_TRUE(find(agent(std::string(255, '/')))->front() == key_of('d'));
  // A file that may not be read is no reason to take the default for that job.
  ASSERT_EQ(::chmod((dir.path() + "/job7.secret").c_str(), 0644), 0);
  EXPECT_THAT(find(agent("job7")).error().message(), HasSubstr("job7.secret: others may read"));
  EXPECT_FALSE(find(PeerIdentity{PeerRole::operator_tool, "me"}));
  ASSERT_EQ(::chmod(dir.path().c_str(), 0777), 0);
  EXPECT_THAT(check_secrets(places).error().message(), HasSubstr("others may put files into it"));
}

TEST(SecretFolder, AnEmbeddedServerKnowsItsJobOnly) {
  const testing::TempDir dir;
  SecretPlaces places;
  places.job_file = secret_file(dir, "s", format_secret(key_of('j')), 0600);
  places.run_id = "job7";
  const SecretFinder find = secret_finder(places);
  EXPECT_TRUE(find(agent("job7"))->front() == key_of('j'));
  EXPECT_FALSE(find(agent("job8")));
  EXPECT_TRUE(find(PeerIdentity{PeerRole::operator_tool, "me"})->front() == key_of('j'));
  places.operator_file = secret_file(dir, "o", format_secret(key_of('o')), 0600);
  EXPECT_TRUE(secret_finder(places)(PeerIdentity{PeerRole::operator_tool, "me"})->front() == key_of('o'));
}

}  // namespace
}  // namespace ddprun
