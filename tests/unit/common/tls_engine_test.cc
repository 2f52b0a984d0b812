// TLS by external PSK, both ends in memory: who gets in, who does not, and what each side says then.
#include "common/tls_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace ddprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Key key_of(char c) { return Key(std::string(32, c)); }
PeerIdentity agent(const std::string& run_id) { return PeerIdentity{PeerRole::agent, run_id}; }

using Known = std::map<std::string, Secrets>;

TlsEngine server(Known known) {
  SecretFinder finder = [known = std::move(known)](const PeerIdentity& identity) -> Result<Secrets> {
    const auto found = known.find(identity.to_string());
    if (found == known.end()) return Error(Errc::not_found, "no file /secrets/x");
    return found->second;
  };
  return std::move(*TlsEngine::make(*TlsContext::server(std::move(finder))));
}

TlsEngine client(const PeerIdentity& identity, char key) {
  return std::move(*TlsEngine::make(*TlsContext::client(identity, {key_of(key)})));
}

struct Ends {
  Result<void> client, server;
  std::size_t to_client = 0, to_server = 0;
};

// Bytes to and fro until nobody has any, `step` at a time.
Ends talk(TlsEngine& a, TlsEngine& b, std::size_t step = 1 << 20) {
  Ends ends;
  const auto move = [step](TlsEngine& from, TlsEngine& to, Result<void>& state, std::size_t& count) {
    const std::string bytes = from.take_output();
    count += bytes.size();
    for (std::size_t at = 0; at < bytes.size() && state; at += step) state = to.receive(bytes.substr(at, step));
    return !bytes.empty();
  };
  for (bool moved = true; moved;) {
    moved = move(a, b, ends.server, ends.to_server);
    moved = move(b, a, ends.client, ends.to_client) || moved;
  }
  return ends;
}

TEST(TlsEngine, WhoHoldsTheSecretGetsInAndIsKnown) {
  TlsEngine a = client(agent("job7"), 'k');
  TlsEngine b = server({{"agent:job7", {key_of('k')}}});
  const Ends ends = talk(a, b);
  ASSERT_TRUE(ends.client && ends.server);
  EXPECT_TRUE(a.established() && b.established());
  EXPECT_LT(ends.to_server, 1024u);
  EXPECT_TRUE(b.peer_is(agent("job7")));
  EXPECT_FALSE(b.peer_is(agent("job8")));
  EXPECT_FALSE(b.peer_is(PeerIdentity{PeerRole::operator_tool, "job7"}));
  EXPECT_EQ(b.peer_name(), "agent:job7");
  ASSERT_TRUE(b.receive(*a.seal("join")));
  EXPECT_EQ(b.plain(), "join");
  const std::string large(100'000, 'x');
  const std::string sealed = *b.seal(large);
  EXPECT_THAT(sealed, Not(HasSubstr("xxxx")));
  ASSERT_TRUE(a.receive(sealed));
  EXPECT_EQ(a.plain(), large);
}

TEST(TlsEngine, BytesMayComeOneByOne) {
  TlsEngine a = client(agent("job7"), 'k');
  TlsEngine b = server({{"agent:job7", {key_of('k')}}});
  const Ends ends = talk(a, b, 1);
  EXPECT_TRUE(ends.client && ends.server);
  EXPECT_TRUE(a.established() && b.established());
}

TEST(TlsEngine, WhatFollowsTheLastWordOfTheHandshakeIsKept) {
  TlsEngine a = client(agent("job7"), 'k');
  TlsEngine b = server({{"agent:job7", {key_of('k')}}});
  ASSERT_TRUE(b.receive(a.take_output()));
  ASSERT_TRUE(a.receive(b.take_output()));
  ASSERT_TRUE(a.established());
  const std::string large(50'000, 'y');  // far more than an unknown peer may send
  ASSERT_TRUE(b.receive(*a.seal(large)));
  EXPECT_EQ(b.plain(), large);
}

TEST(TlsEngine, WhileKeysRotateAllVerify) {
  const Known known{{"agent:job7", {key_of('n'), key_of('o')}}};
  for (const char key : {'n', 'o'}) {
    TlsEngine a = client(agent("job7"), key);
    TlsEngine b = server(known);
    const Ends ends = talk(a, b);
    EXPECT_TRUE(ends.client && ends.server) << key;
  }
}

TEST(TlsEngine, AWrongKeyIsDeniedAndBothKeysAreNamed) {
  TlsEngine a = client(agent("job7"), 'w');
  TlsEngine b = server({{"agent:job7", {key_of('k')}}});
  const Ends ends = talk(a, b);
  ASSERT_FALSE(ends.client);
  ASSERT_FALSE(ends.server);
  EXPECT_TRUE(a.denied());
  EXPECT_FALSE(a.established() || b.established());
  EXPECT_EQ(ends.client.error().code(), Errc::refused);
  const std::string ours = *key_id(key_of('w')), theirs = *key_id(key_of('k'));
  EXPECT_THAT(ends.client.error().message(), HasSubstr("refused as agent:job7 with key " + ours));
  EXPECT_THAT(ends.client.error().message(), HasSubstr("here agent:job7 is known by key " + theirs));
  EXPECT_THAT(ends.server.error().message(), HasSubstr("agent:job7 came with key " + ours));
}

TEST(TlsEngine, AnUnknownJobIsDeniedWithoutTellingWhereWeLooked) {
  TlsEngine a = client(agent("job8"), 'k');
  TlsEngine b = server({{"agent:job7", {key_of('k')}}});
  const Ends ends = talk(a, b);
  ASSERT_FALSE(ends.client);
  EXPECT_THAT(ends.client.error().message(), HasSubstr("there is no secret for it here"));
  EXPECT_THAT(ends.client.error().message(), Not(HasSubstr("/secrets/x")));
  EXPECT_THAT(ends.server.error().message(), HasSubstr("/secrets/x"));
}

// The same secret for two jobs by mistake: the holder of one still cannot speak for the other, nor for an operator.
TEST(TlsEngine, AKeyIsWorthNothingForAnotherName) {
  const Key secret = key_of('k');
  EXPECT_FALSE(*handshake_key(secret, agent("a")) == *handshake_key(secret, agent("b")));
  EXPECT_FALSE(*handshake_key(secret, agent("a")) == *handshake_key(secret, {PeerRole::operator_tool, "a"}));
}

TEST(TlsEngine, TheServerMustKnowTheKeyToo) {
  TlsEngine a = client(agent("job7"), 'k');
  EXPECT_FALSE(a.receive("HTTP/1.1 400 Bad Request\r\n\r\n"));
  EXPECT_FALSE(a.established());
}

TEST(TlsEngine, AServerWithoutSecretsSaysSo) {
  TlsEngine a = client(agent("job7"), 'k');
  const Result<void> state = a.receive(tls_refusal("no secret here \x1b[31m"));
  ASSERT_FALSE(state);
  EXPECT_TRUE(a.denied());
  EXPECT_THAT(state.error().message(), HasSubstr("it says: no secret here \\x1b[31m"));
}

TEST(TlsEngine, AnAlertWithoutASentenceIsDeniedAtTheEnd) {
  TlsEngine a = client(agent("job7"), 'k');
  ASSERT_TRUE(a.receive(tls_refusal("x").substr(0, 7)));  // the sentence may still come
  EXPECT_TRUE(a.denied());
  EXPECT_EQ(a.at_end().code(), Errc::refused);
  EXPECT_THAT(a.at_end().message(), HasSubstr("refused as agent:job7"));
}

TEST(TlsEngine, AnEndWithoutAWordIsNoDenial) {
  TlsEngine a = client(agent("job7"), 'k');
  EXPECT_EQ(a.at_end().code(), Errc::peer_closed);
  EXPECT_FALSE(a.denied());
}

TEST(TlsEngine, StrangersMaySendFourKibibytes) {
  TlsEngine a = client(agent("job7"), 'k');
  const std::string hello = a.take_output();
  TlsEngine b = server({});
  // A record that promises 16 KiB of a ClientHello and goes on and on.
  std::string endless{0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, '\xfc'};
  endless += hello.substr(9, 2);
  Result<void> state;
  std::size_t sent = 0;
  endless.resize(512, 'z');
  while (state && sent < (1u << 20)) {
    state = b.receive(endless);
    sent += endless.size();
    endless.assign(512, 'z');
  }
  ASSERT_FALSE(state);
  EXPECT_LE(sent, kMaxHandshakeBytes + 512);
}

TEST(TlsEngine, ChangedBytesEndTheConnection) {
  TlsEngine a = client(agent("job7"), 'k');
  TlsEngine b = server({{"agent:job7", {key_of('k')}}});
  talk(a, b);
  std::string sealed = *a.seal("join");
  sealed[sealed.size() - 1] = static_cast<char>(sealed.back() ^ 1);
  const Result<void> state = b.receive(sealed);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code(), Errc::malformed);
  EXPECT_EQ(b.plain(), "");
}

TEST(TlsEngine, ARecordedConnectionCannotBePlayedAgain) {
  TlsEngine a = client(agent("job7"), 'k');
  const Known known{{"agent:job7", {key_of('k')}}};
  TlsEngine b = server(known);
  const std::string hello = a.take_output();
  ASSERT_TRUE(b.receive(hello));
  ASSERT_TRUE(a.receive(b.take_output()));
  const std::string rest = *a.seal("join");
  ASSERT_TRUE(b.receive(rest));
  ASSERT_EQ(b.plain(), "join");
  TlsEngine again = server(known);
  ASSERT_TRUE(again.receive(hello));
  EXPECT_FALSE(again.receive(rest));
  EXPECT_FALSE(again.established());
  EXPECT_EQ(again.plain(), "");
}

TEST(PeerIdentity, OffersReadBackAndOthersAreRefused) {
  const OfferedIdentity offer{PeerIdentity{PeerRole::operator_tool, "a b\n"}, "0123456789abcdef"};
  const auto back = decode_offer(encode_offer(offer));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->identity, offer.identity);
  EXPECT_EQ(back->key_id, offer.key_id);
  for (const std::string& bad :
       {std::string(), std::string("ddprun-1 "), std::string("ddprun-1 0123456789abcdef"),
        std::string("ddprun-1 0123456789abcdeX agent:x"), std::string("ddprun-1 0123456789abcdef agent:"),
        std::string("ddprun-1 0123456789abcdef root:x"), "ddprun-1 0123456789abcdef agent:" + std::string(256, 'x'),
        std::string("ddprun-2 0123456789abcdef agent:x")}) {
    EXPECT_FALSE(decode_offer(bad)) << bad;
  }
}

}  // namespace
}  // namespace ddprun
