#include "launcher/hosts/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::launcher {
namespace {

using testing::HasSubstr;

// "a:2 b [0,2]": what a list came to.
std::string text_of(const HostList& list) {
  std::string out;
  for (const auto& host : list.hosts) {
    out += (out.empty() ? "" : " ") + host.name;
    if (host.slots) out += "=" + std::to_string(*host.slots);
    for (std::size_t i = 0; i < host.devices.size(); ++i) out += (i == 0 ? "/" : ",") + host.devices[i];
  }
  return out;
}

std::string text_of(const Result<HostList>& list) { return list ? text_of(*list) : list.error().message(); }

TEST(HostList, TakesNamesNumbersAndAddresses) {
  const struct {
    const char *text, *expected;
  } kTable[] = {
      {"a", "a"},
      {"a:2,b:4", "a=2 b=4"},
      {" a , b.example.org:1 ", "a b.example.org=1"},
      {"user@a:2", "user@a=2"},
      {"10.0.0.1:3,10.0.0.2", "10.0.0.1=3 10.0.0.2"},
      {"fd00::1", "fd00::1"},
      {"[fd00::1]:2,[fd00::2]", "fd00::1=2 fd00::2"},
      {"root@[fe80::1%eth0]:2", "root@fe80::1%eth0=2"},
      {"localhost:1", "localhost=1"},
  };
  for (const auto& [text, expected] : kTable) EXPECT_EQ(text_of(parse_hosts(text, "--hosts")), expected) << text;
}

TEST(HostList, AHostTwiceIsAddedUpWithAWord) {
  const auto list = parse_hosts("a:2,b,a:1,b", "--hosts");
  ASSERT_TRUE(list);
  EXPECT_EQ(text_of(*list), "a=3 b=2");
  EXPECT_THAT(list->notes, testing::ElementsAre("--hosts: a stands there twice: 2 + 1 = 3 workers",
                                                "--hosts: b stands there twice: 1 + 1 = 2 workers"));
}

TEST(HostList, SaysWhatIsWrongAndWhere) {
  const struct {
    const char *text, *words;
  } kTable[] = {
      {"", "no host"},
      {"a,,b", "empty entry"},
      {"a:", "the workers of a"},
      {"a:0", "the workers of a"},
      {"a:x", "the workers of a"},
      {"a:-1", "the workers of a"},
      {"-oProxyCommand=evil", "takes for an option"},
      {"root@-oProxyCommand", "takes for an option"},
      {"a b", "is not a host"},
      {"a;reboot", "is not a host"},
      {"$(id)", "is not a host"},
      {"@a", "no user's name"},
      {"[fd00::1", "write [ADDRESS]"},
      {"[fd00::1]2", "write [ADDRESS]"},
      {"fd00::g", "is not a host"},
  };
  for (const auto& [text, words] : kTable) {
    const auto list = parse_hosts(text, "--hosts");
    ASSERT_FALSE(list) << text;
    EXPECT_THAT(list.error().message(), testing::StartsWith("--hosts: ")) << text;
    EXPECT_THAT(list.error().message(), HasSubstr(words)) << text;
  }
}

TEST(HostList, ReadsHostFiles) {
  EXPECT_EQ(
      text_of(parse_hostfile("# cluster\n\na slots=2\nb:4  # the big one\nuser@c slots=1 max_slots=8\r\nd\n", "hf")),
      "a=2 b=4 user@c=1 d");
  EXPECT_EQ(text_of(parse_hostfile("a max-slots=4\n", "hf")), "a");
  EXPECT_THAT(text_of(parse_hostfile("a\nb slot=2\n", "hf")), HasSubstr("hf:2: 'slot=2' is not known"));
  EXPECT_THAT(text_of(parse_hostfile("a:2 slots=2\n", "hf")),
              HasSubstr("hf:1: the number of workers stands there twice"));
  EXPECT_THAT(text_of(parse_hostfile("a slots=two\n", "hf")), HasSubstr("hf:1: slots: "));
  EXPECT_THAT(text_of(parse_hostfile("# nothing\n", "hf")), HasSubstr("hf: there is no host in it"));
}

TEST(HostList, ReadsWhatBatchSystemsWrite) {
  const auto pbs = parse_slot_file("n1\nn1\nn2\nn2\nn2\n", "nodes");
  EXPECT_EQ(text_of(pbs), "n1=2 n2=3");
  ASSERT_TRUE(pbs);
  EXPECT_TRUE(pbs->notes.empty()) << "a name twice is how that file counts";
  EXPECT_EQ(text_of(parse_pe_hostfile("n1.x 4 all.q@n1.x UNDEFINED\nn2.x 2 all.q@n2.x <NULL>\n", "pe")),
            "n1.x=4 n2.x=2");
  EXPECT_THAT(text_of(parse_pe_hostfile("n1\n", "pe")), HasSubstr("pe:1: a line is: HOST SLOTS"));
}

TEST(HostList, IncludesAndExcludesAsDeepSpeedDoes) {
  const struct {
    const char *include, *exclude, *expected;
  } kTable[] = {
      {"", "", "a=4 u@b=4 c"},
      {"c,a", "", "c a=4"},
      {"a@b", "", "a=4 u@b=4"},
      {"b:0,2", "", "u@b=2/0,2"},
      {"a:1,3,c", "", "a=2/1,3 c"},
      {"", "b", "a=4 c"},
      {"", "a:0@c", "a=3/1,2,3 u@b=4"},
      {"a,b", "a", "u@b=4"},
      {"", "a:0,1,2,3", "u@b=4 c"},
      {"d", "", "--include: 'd' is not in the list of hosts (did you mean a?)"},
      {"a:4", "", "--include: a has 4 slots, 0 to 3; there is no 4"},
      {"a,a", "", "--include: a stands there twice"},
      {"a:x", "", "--include: 'a:x': after ':' stand device numbers, as a:0,2"},
      {"", "a,b,c", "--exclude: no host is left"},
      {"", "a:7", "--exclude: a has the slots 0,1,2,3; there is no 7"},
  };
  for (const auto& [include, exclude, expected] : kTable) {
    auto list = parse_hosts("a:4,u@b:4,c", "--hosts");
    ASSERT_TRUE(list);
    const auto done = select_hosts(*list, include, exclude);
    if (std::string(include) == "d") {
      ASSERT_FALSE(done);
      EXPECT_THAT(done.error().message(), HasSubstr("'d' is not in the list"));
      continue;
    }
    EXPECT_EQ(done ? text_of(*list) : done.error().message(), expected) << include << " / " << exclude;
  }
}

}  // namespace
}  // namespace ddprun::launcher
