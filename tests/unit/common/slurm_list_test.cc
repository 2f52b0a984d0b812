#include "common/slurm_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> hosts(const std::string& text) {
  auto list = expand_host_list(text);
  return list ? *list : std::vector<std::string>{"error: " + list.error().message()};
}

TEST(SlurmList, IsReadAsSlurmWritesIt) {
  EXPECT_THAT(hosts("cl1"), ElementsAre("cl1"));
  EXPECT_THAT(hosts("cl[1-3,07-08],gpu5"), ElementsAre("cl1", "cl2", "cl3", "cl07", "cl08", "gpu5"));
  EXPECT_THAT(hosts("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(hosts("rack[1-2]n[1-2]-ib"), ElementsAre("rack1n1-ib", "rack1n2-ib", "rack2n1-ib", "rack2n2-ib"));
  EXPECT_THAT(hosts("a-b.c,d"), ElementsAre("a-b.c", "d"));
}

TEST(SlurmList, NonsenseIsRefusedAndFillsNoMemory) {
  for (const char* text : {"", "a,", "a[", "a]", "a[]", "a[1-", "a[2-1]", "a[x]", "a[1,,2]", "a[[1]]", "a[-1]"}) {
    EXPECT_THAT(hosts(text).front(), HasSubstr("is no list")) << text;
  }
  for (const char* text :
       {"a[1-9999999999]", "a[1-1000000]b[1-1000000]", "a[1-999999999999999999999999]", "a[1-1000000],b[1-1000000]"}) {
    EXPECT_THAT(hosts(text).front(), HasSubstr("is no list")) << text;
  }
}

TEST(SlurmList, CountsOfNodes) {
  EXPECT_THAT(expand_counts("2,1(x3)").value(), ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(expand_counts("16(x2),4").value(), ElementsAre(16, 16, 4));
  for (const char* text : {"", "x", "1(x0)", "1(x", "1(2)", "1,", "1(x99999999999)", "-1"})
    EXPECT_FALSE(expand_counts(text)) << text;
}

}  // namespace
}  // namespace ddprun
