// What needs no name server; one that does not answer: tests/process/rendezvous/address_process_test.py.
#include "common/lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::HasSubstr;

TEST(Lookup, NumbersAndLocalhostAreAnsweredAtOnce) {
  const std::pair<const char*, Lookup::Addresses> cases[] = {
      {"10.0.0.1", {"10.0.0.1"}}, {"::1", {"::1"}}, {"localhost", {"127.0.0.1", "::1"}}};
  for (const auto& [host, expected] : cases) {
    const Lookup lookup(host);
    EXPECT_EQ(lookup.fd(), -1) << host;
    const auto answer = lookup.answer();
    ASSERT_TRUE(answer.has_value()) << host;
    ASSERT_TRUE(answer->has_value()) << answer->error().message();
    EXPECT_EQ(**answer, expected);
  }
}

TEST(Lookup, AnUnknownNameIsNamedWithTheReason) {
  const auto answer = Lookup("no-such-host.invalid").wait(SteadyClock::now() + std::chrono::seconds(60));
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().message(), HasSubstr("host name 'no-such-host.invalid'"));
}

TEST(Lookup, NobodyNeedsToWaitForTheAnswer) {
  { const Lookup left_behind("no-such-host.invalid"); }
  const auto answer = Lookup("no-such-host-2.invalid").wait(SteadyClock::now());
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().code() == Errc::timed_out || answer.error().code() == Errc::not_found);
}

}  // namespace
}  // namespace ddprun
