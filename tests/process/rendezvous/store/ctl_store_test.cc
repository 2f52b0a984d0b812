#include "launcher/ctl/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/process/rendezvous/store/served.h"

namespace ddprun {
namespace {

using test::Served;
using testing::HasSubstr;
using testing::StartsWith;

struct Said {
  int code;
  std::string out;
  std::string err;
};

class CtlStore : public testing::Test {
 protected:
  Said ctl(const std::vector<std::string>& arguments) { return ctl_at({"127.0.0.1", served_.port()}, arguments); }
  static Said ctl_at(const Endpoint& endpoint, const std::vector<std::string>& arguments) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = launcher::ctl_store(endpoint, arguments);
    std::string out = testing::internal::GetCapturedStdout();
    return {code, std::move(out), testing::internal::GetCapturedStderr()};
  }
  Served served_;
};

TEST_F(CtlStore, SetsAndGets) {
  EXPECT_EQ(ctl({"set", "job/step", "41"}).code, 0);
  EXPECT_EQ(ctl({"get", "job/step"}).out, "41\n");
  EXPECT_EQ(ctl({"get", "job/step", "--json"}).out, "{\"key\":\"job/step\",\"value\":\"41\"}\n");
  // The key that torch's client calls job/step.
  EXPECT_EQ(*served_.client("").get("/job/step"), "41");
  EXPECT_EQ(ctl({"get", "--raw", "/job/step"}).out, "41\n");
  EXPECT_EQ(ctl({"set", "--", "--odd", "--value"}).code, 0);
  EXPECT_EQ(ctl({"get", "--", "--odd"}).out, "--value\n");
}

TEST_F(CtlStore, BytesThatAreNoTextAreHexInJson) {
  StoreClient client = served_.client();
  ASSERT_TRUE(client.set_confirmed("b", "\xff\x01"));
  EXPECT_EQ(ctl({"get", "b", "--json"}).out, "{\"key\":\"b\",\"value\":{\"hex\":\"ff01\"}}\n");
  EXPECT_EQ(ctl({"get", "b"}).out, "\xff\x01\n");
}

TEST_F(CtlStore, ListsKeys) {
  EXPECT_EQ(ctl({"keys"}).out, "");
  for (const char* key : {"b", "a/2", "a/1"}) ctl({"set", key, "x"});
  EXPECT_EQ(ctl({"keys"}).out, "a/1\na/2\nb\n");
  EXPECT_EQ(ctl({"keys", "a/"}).out, "a/1\na/2\n");
  EXPECT_EQ(ctl({"keys", "a/", "--json"}).out, "{\"keys\":[\"a/1\",\"a/2\"]}\n");
}

TEST_F(CtlStore, WaitsAndNamesWhatIsMissing) {
  ctl({"set", "a", "1"});
  EXPECT_EQ(ctl({"wait", "a"}).code, 0);
  const Said said = ctl({"wait", "a", "b", "--timeout-ms", "100"});
  EXPECT_EQ(said.code, 69);
  EXPECT_THAT(said.err, StartsWith("ddpctl: store wait at 127.0.0.1:"));
  EXPECT_THAT(said.err, HasSubstr("missing 1 of 2: b"));
}

TEST_F(CtlStore, StatsCountKeys) {
  ctl({"set", "a", "1"});
  EXPECT_THAT(ctl({"stats"}).out, HasSubstr("keys=1 key_bytes=2 "));
  EXPECT_THAT(ctl({"stats", "--json"}).out, HasSubstr("\"keys\":1"));
}

TEST_F(CtlStore, WrongUseIsOneLineAndCodeTwo) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {}, {"get"}, {"set", "k"}, {"shout"}, {"get", "k", "--loud"}, {"get", "k", "--timeout-ms", "soon"}}) {
    const Said said = ctl(arguments);
    EXPECT_EQ(said.code, 2);
    EXPECT_EQ(std::count(said.err.begin(), said.err.end(), '\n'), 1) << said.err;
  }
}

TEST_F(CtlStore, NobodyThereIsCode69AndNamesTheEndpoint) {
  const std::uint16_t port = served_.port();
  served_.on_thread([this] { served_.server().close(); });
  const Said said = ctl_at({"127.0.0.1", port}, {"stats", "--timeout-ms", "200"});
  EXPECT_EQ(said.code, 69);
  EXPECT_THAT(said.err, HasSubstr("127.0.0.1:" + std::to_string(port)));
}

}  // namespace
}  // namespace ddprun
