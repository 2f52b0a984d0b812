#include "rendezvous/server/status.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
namespace {

std::vector<JobStatus> one_job(const std::string& run_id) {
  JobStatus job;
  job.run_id = RunId(run_id);
  job.nodes.resize(1);
  job.nodes[0].host = "h\xff";
  return {job};
}

std::string label_of(const std::string& run_id) {
  const std::string text = to_metrics(MetricsFormat::openmetrics, one_job(run_id), ServerCounters(), StoreStats());
  const std::string before = "ddprun_job_round{run_id=\"";
  const std::size_t begin = text.find(before) + before.size();
  return text.substr(begin, text.find("\"} ", begin) - begin);
}

TEST(Status, LabelsAreUtf8AndTellAllRunIdsApart) {
  EXPECT_EQ(label_of("job 7"), "job 7");
  EXPECT_EQ(label_of("\xc2\x9b\x7f"), "\\\\xc2\\\\x9b\\\\x7f");
  EXPECT_EQ(label_of("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"), "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(label_of("a\"b\\c"), "a\\\"b\\\\x5cc");
  EXPECT_EQ(label_of("a\nb"), "a\\\\x0ab");
  EXPECT_NE(label_of("a\nb"), label_of("a\\x0ab"));
  EXPECT_NE(label_of("\xff"), label_of("\\xff"));
  for (const std::string& bad :
       {std::string("\xff"), std::string("\xc3"), std::string("\xc0\x80"), std::string("\xed\xa0\x80"),
        std::string("\xf4\x90\x80\x80"), std::string("\xe2\x82")}) {
    EXPECT_EQ(label_of(bad).substr(0, 3), "\\\\x") << bad;
    for (const char c : label_of(bad)) EXPECT_LT(static_cast<unsigned char>(c), 0x80);
  }
}

TEST(Status, JsonIsValidWhateverThePeersAreCalled) {
  const std::string text = to_status_json(one_job("\xff"), {});
  EXPECT_NE(text.find("\\ufffd"), std::string::npos);
  EXPECT_EQ(text.find('\xff'), std::string::npos);
  EXPECT_NE(to_status_json(one_job("\xc2\x9b"), {}).find("\\u009b"), std::string::npos);  // some terminals obey it
}

}  // namespace
}  // namespace ddprun::rendezvous
