// Certificates instead of secrets. They are made anew by the openssl program, so that none can expire in the tree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "common/tls_engine.h"
#include "tests/support/common_temp_dir.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;

class TlsCertificate : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v openssl >/dev/null") != 0) GTEST_SKIP() << "no openssl program on this host";
    make_ca("ca");
  }

  void sh(const std::string& command) {
    ASSERT_EQ(std::system(("cd " + dir_.path() + " && umask 077 && (" + command + ") >log 2>&1").c_str()), 0)
        << command;
  }
  void make_ca(const std::string& name) {
    sh("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + name + " -keyout " +
       name + ".key -out " + name + ".pem");
  }
  TlsFiles issue(const std::string& name, const std::string& sans, const std::string& ca = "ca") {
    dir_.write(name + ".ext", sans.empty() ? "basicConstraints=CA:FALSE\n" : "subjectAltName=" + sans + "\n");
    sh("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout " + name + ".key -out " +
       name + ".csr && openssl x509 -req -in " + name + ".csr -CA " + ca + ".pem -CAkey " + ca +
       ".key -CAcreateserial -days 2 -extfile " + name + ".ext -out " + name + ".pem");
    return files(name, ca);
  }
  TlsFiles files(const std::string& name, const std::string& ca) {
    return {dir_.path() + "/" + name + ".pem", dir_.path() + "/" + name + ".key", dir_.path() + "/" + ca + ".pem"};
  }

  static TlsEngine server(const TlsFiles& files) {
    return std::move(*TlsEngine::make(*TlsContext::server(nullptr, files)));
  }
  static TlsEngine client(const TlsFiles& files, const std::string& host = "head.example") {
    PeerIdentity identity{PeerRole::agent, "job7"};
    return std::move(*TlsEngine::make(*TlsContext::client(identity, {}, files, host)));
  }
  static bool meet(TlsEngine& a, TlsEngine& b, std::string* said = nullptr) {
    Result<void> at_a, at_b;
    for (bool moved = true; moved && at_a && at_b;) {
      const std::string to_b = a.take_output();
      if (!to_b.empty()) at_b = b.receive(to_b);
      const std::string to_a = b.take_output();
      if (!to_a.empty()) at_a = a.receive(to_a);
      moved = !to_a.empty() || !to_b.empty();
    }
    if (said != nullptr) *said = !at_a ? at_a.error().message() : !at_b ? at_b.error().message() : "";
    return at_a && at_b && a.established() && b.established();
  }

  testing::TempDir dir_;
};

TEST_F(TlsCertificate, NamesOfTheCertificateAreWhatThePeerMayBe) {
  const TlsFiles daemon = issue("daemon", "URI:ddprun:rendezvous");
  TlsEngine a = client(issue("agent", "URI:ddprun:agent:job7,DNS:job8,URI:spiffe://x/y"));
  TlsEngine b = server(daemon);
  std::string said;
  ASSERT_TRUE(meet(a, b, &said)) << said;
  EXPECT_TRUE(b.peer_is({PeerRole::agent, "job7"}));
  EXPECT_TRUE(b.peer_is({PeerRole::agent, "job8"}));
  EXPECT_FALSE(b.peer_is({PeerRole::agent, "job9"}));
  EXPECT_FALSE(b.peer_is({PeerRole::operator_tool, "job8"}));
  TlsEngine c = client(issue("operator", "URI:ddprun:operator:me"));
  TlsEngine d = server(daemon);
  ASSERT_TRUE(meet(c, d));
  EXPECT_TRUE(d.peer_is({PeerRole::operator_tool, "me"}));
  EXPECT_FALSE(d.peer_is({PeerRole::agent, "me"}));
  TlsEngine e = client(issue("nobody", ""));
  TlsEngine f = server(daemon);
  ASSERT_TRUE(meet(e, f));
  EXPECT_FALSE(f.peer_is({PeerRole::agent, ""}));
}

TEST_F(TlsCertificate, TheServerMustBeARendezvousOfOurs) {
  const TlsFiles mine = issue("agent", "URI:ddprun:agent:job7");
  const std::pair<const char*, bool> cases[] = {{"URI:ddprun:agent:job7", true},  // an embedded one
                                                {"DNS:head.example", true},
                                                {"URI:ddprun:agent:job8", false},
                                                {"DNS:other.example", false},
                                                {"URI:ddprun:operator:me", false}};
  int number = 0;
  for (const auto& [sans, good] : cases) {
    TlsEngine a = client(mine);
    TlsEngine b = server(issue("server" + std::to_string(++number), sans));
    std::string said;
    EXPECT_EQ(meet(a, b, &said), good) << sans << ": " << said;
    EXPECT_THAT(said, HasSubstr(good ? "" : "certificate names neither ddprun:rendezvous"));
    EXPECT_EQ(a.denied(), !good);
  }
}

TEST_F(TlsCertificate, ACertificateOfAnotherCaIsNoCertificate) {
  make_ca("other");
  TlsFiles foreign = issue("foreign", "URI:ddprun:agent:job7", "other");
  foreign.ca = dir_.path() + "/ca.pem";
  TlsEngine a = client(foreign);
  TlsEngine b = server(issue("daemon", "URI:ddprun:rendezvous"));
  EXPECT_FALSE(meet(a, b));
  EXPECT_FALSE(b.established());
  EXPECT_FALSE(b.peer_is({PeerRole::agent, "job7"}));
}

// A server that takes both: one whose key is unknown does not get in for want of a certificate.
TEST_F(TlsCertificate, AKeyAndCertificatesSideBySide) {
  const TlsFiles daemon = issue("daemon", "URI:ddprun:rendezvous");
  const Key key(std::string(32, 'k'));
  const auto context =
      *TlsContext::server([key](const PeerIdentity&) -> Result<Secrets> { return Secrets{key}; }, daemon);
  const PeerIdentity job7{PeerRole::agent, "job7"};
  TlsEngine a = std::move(*TlsEngine::make(*TlsContext::client(job7, {key})));
  TlsEngine b = std::move(*TlsEngine::make(context));
  EXPECT_TRUE(meet(a, b));
  EXPECT_TRUE(b.peer_is(job7));
  TlsEngine c = std::move(*TlsEngine::make(*TlsContext::client(job7, {Key(std::string(32, 'w'))})));
  TlsEngine d = std::move(*TlsEngine::make(context));
  EXPECT_FALSE(meet(c, d));
  EXPECT_FALSE(d.established());
  TlsEngine e = client(issue("agent", "URI:ddprun:agent:job8"));
  TlsEngine f = std::move(*TlsEngine::make(context));
  EXPECT_TRUE(meet(e, f));
  EXPECT_FALSE(f.peer_is(job7));
}

TEST_F(TlsCertificate, BadFilesAreNamed) {
  const TlsFiles good = issue("agent", "URI:ddprun:agent:job7");
  const auto why = [](TlsFiles files) {
    const auto context = TlsContext::server(nullptr, files);
    return context ? std::string("taken") : context.error().message();
  };
  EXPECT_EQ(why(good), "taken");
  TlsFiles bad = good;
  bad.ca.clear();
  EXPECT_THAT(why(bad), HasSubstr("go together"));
  bad = good;
  bad.key = good.certificate;
  EXPECT_THAT(why(bad), HasSubstr("is no private key in PEM"));
  bad.key = files("ca", "ca").key;
  EXPECT_THAT(why(bad), HasSubstr("or not that of --tls-cert"));
  bad = good;
  bad.certificate = dir_.write("empty", "");
  EXPECT_THAT(why(bad), HasSubstr("is no certificate in PEM"));
  sh("chmod 644 agent.key");
  EXPECT_THAT(why(good), HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace ddprun
