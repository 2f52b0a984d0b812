#include "launcher/hosts/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace ddprun::launcher::hosts {
namespace {

using testing::HasSubstr;
using Kind = HostEnd::Kind;

const std::vector<std::string> kHosts{"a", "u@b", "c"};

HostEnd ended(int code, std::string report = "", int order = 0) {
  return {Kind::ended, code, "", std::move(report), order};
}

std::string report(const std::string& host, const std::string& cause_host, int rank) {
  return R"({"host":")" + host + R"(","reason":"too many failures","root_cause":{"rank":)" + std::to_string(rank) +
         R"(,"group_rank":1,"host":")" + cause_host + R"(","how":"exit code 3","message":"ValueError: x\nmore"}})";
}

TEST(Verdict, AllWell) {
  const auto verdict = give_verdict(kHosts, {ended(0), ended(0), ended(0)}, 3, true, 0);
  EXPECT_EQ(verdict.code, 0);
  EXPECT_EQ(verdict.text, "");
}

TEST(Verdict, NamesTheRankAndTheHostOfTheList) {
  const auto verdict =
      give_verdict(kHosts, {ended(1, report("a", "n2", 3)), ended(3, report("n2", "n2", 3)), ended(1)}, 3, true, 0);
  EXPECT_EQ(verdict.code, 3);
  EXPECT_EQ(verdict.text,
            "ddprun: the job on 3 hosts failed: rank 3 on u@b (n2) ended with exit code 3: ValueError: x\n");
}

TEST(Verdict, HostsOfOneNameAreToldApartByTheirPlace) {
  const auto same = report("vm", "vm", 3);
  EXPECT_THAT(give_verdict(kHosts, {ended(3, same), ended(3, same), ended(3, same)}, 3, true, 0).text,
              HasSubstr("rank 3 on u@b (vm)"));
}

TEST(Verdict, LostHosts) {
  const HostEnd lost{Kind::lost, 69, "silent for 30 s", "", 0};
  auto verdict = give_verdict(kHosts, {ended(143), lost, ended(143)}, 3, true, 0);
  EXPECT_EQ(verdict.code, 69);
  EXPECT_EQ(verdict.text, "ddprun: the job on 3 hosts failed: lost u@b: silent for 30 s\n");
  verdict = give_verdict(kHosts, {ended(0), lost, ended(0)}, 2, true, 0);
  EXPECT_EQ(verdict.code, 0);
  EXPECT_EQ(verdict.text, "ddprun: the job ended well on 2 of 3 hosts; not on u@b: silent for 30 s\n");
  // A worker failed, and that is why; the loss is told beside it.
  verdict = give_verdict(kHosts, {ended(3, report("a", "a", 0)), lost, ended(143)}, 3, true, 0);
  EXPECT_EQ(verdict.code, 3);
  EXPECT_THAT(verdict.text, HasSubstr("rank 0 on a ended with exit code 3: ValueError: x; lost: u@b: silent for 30 s"));
}

TEST(Verdict, HostsThatCannotBeUsed) {
  const HostEnd gone{Kind::no_start, 69, "ssh: connect to host b port 22: Connection refused", "", 0};
  const auto verdict = give_verdict(kHosts, {HostEnd(), gone, HostEnd()}, 3, false, 0);
  EXPECT_EQ(verdict.code, 69);
  EXPECT_EQ(
      verdict.text,
      "ddprun: the job cannot begin: it needs all of the 3 hosts in the list, and 1 host cannot be used: u@b: ssh: "
      "connect to host b port 22: Connection refused\n");
}

TEST(Verdict, AStoppedJob) {
  EXPECT_EQ(give_verdict(kHosts, {ended(75), ended(75), ended(75)}, 3, true, SIGTERM).code, 75);
  EXPECT_EQ(give_verdict(kHosts, {ended(75), ended(143), ended(75)}, 3, true, SIGTERM).code, 143);
  EXPECT_EQ(give_verdict(kHosts, {ended(130), ended(130), ended(130)}, 3, true, SIGINT).code, 130);
  EXPECT_EQ(give_verdict(kHosts, {HostEnd(), HostEnd(), HostEnd()}, 3, false, SIGINT).code, 130);
}

TEST(Verdict, SavedWithoutASignalOfOurs) {
  EXPECT_EQ(give_verdict(kHosts, {ended(75), ended(75), ended(75)}, 3, true, 0).code, 75);
  EXPECT_EQ(give_verdict(kHosts, {ended(75), ended(2), ended(75)}, 3, true, 0).code, 2);
}

TEST(Verdict, WithoutAFailedWorkerTheFirstEndIsTheReason) {
  const auto reason = [](const std::string& text) { return R"({"host":"n","reason":")" + text + R"("})"; };
  const auto verdict = give_verdict(kHosts,
                                    {ended(143, reason("stopped by SIGTERM"), 2), ended(2, reason("no GPU"), 0),
                                     ended(143, reason("stopped by SIGTERM"), 1)},
                                    3, true, 0);
  EXPECT_EQ(verdict.code, 2);
  EXPECT_EQ(verdict.text, "ddprun: the job on 3 hosts failed: u@b (n): no GPU\n");
}

TEST(Verdict, AReportIsNotTrusted) {
  for (const char* text :
       {"", "{", "[]", "3", R"({"root_cause":7})", R"({"host":5,"root_cause":{"rank":"x","how":[]}})",
        R"({"root_cause":{"rank":1e99,"group_rank":99,"host":"\u001b[2Jx"}})"}) {
    const auto verdict = give_verdict(kHosts, {ended(1, text), ended(1, text), ended(1, text)}, 3, true, 0);
    EXPECT_NE(verdict.code, 0) << text;
    EXPECT_EQ(verdict.text.find('\x1b'), std::string::npos) << text;
    EXPECT_EQ(std::count(verdict.text.begin(), verdict.text.end(), '\n'), 1) << text;
  }
}

}  // namespace
}  // namespace ddprun::launcher::hosts
