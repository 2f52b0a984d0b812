#include "launcher/hosts/host_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace ddprun::launcher::hosts {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// "dial 0 dial 1": what is done.
std::string text_of(const HostJob::Actions& actions) {
  std::string out;
  for (const auto& action : actions) {
    const char* words[] = {"dial", "start", "signal", "hang_up", "finish"};
    out += (out.empty() ? "" : ", ") + std::string(words[static_cast<int>(action.what)]);
    if (action.what != HostJob::Do::finish) out += " " + std::to_string(action.host);
    if (action.signal != 0) out += " " + std::to_string(action.signal);
  }
  return out;
}

struct Job {
  explicit Job(std::size_t hosts, std::size_t min = 0, bool first_serves = true)
      : job(options(hosts, min, first_serves)) {}
  static HostJobOptions options(std::size_t hosts, std::size_t min, bool first_serves) {
    HostJobOptions out;
    for (std::size_t i = 0; i < hosts; ++i) out.hosts.push_back(std::string(1, static_cast<char>('a' + i)));
    out.min_hosts = min == 0 ? hosts : min;
    out.first_serves = first_serves;
    return out;
  }
  // All have answered and begun.
  void run() {
    job.begin(now);
    for (std::size_t i = 0; i < job.ends().size(); ++i) job.on_hello(i, Hello(), now);
  }
  void hear_all() {
    for (std::size_t i = 0; i < job.ends().size(); ++i) job.on_heard(i, now);
  }
  std::string after(milliseconds time) {
    now += time;
    return text_of(job.tick(now));
  }
  HostJob job;
  TimePoint now{seconds(1000)};
};

TEST(HostJob, StartsWhenAllHaveAnswered) {
  Job a(2);
  EXPECT_EQ(text_of(a.job.begin(a.now)), "dial 0, dial 1");
  EXPECT_EQ(text_of(a.job.on_hello(1, Hello(), a.now)), "");
  EXPECT_EQ(text_of(a.job.on_hello(0, Hello(), a.now)), "start 0, start 1");
  EXPECT_EQ(text_of(a.job.on_end(1, End{0, "", ""}, a.now)), "");
  EXPECT_EQ(text_of(a.job.on_end(0, End{0, "", ""}, a.now)), "finish");
  EXPECT_FALSE(a.job.next_deadline());
}

TEST(HostJob, DialsSomeAtATime) {
  Job a(100);
  EXPECT_EQ(a.job.begin(a.now).size(), HostJob::kDialAtOnce);
  EXPECT_EQ(text_of(a.job.on_hello(3, Hello(), a.now)), "dial 64");
}

TEST(HostJob, AHostThatCannotBeReachedEndsAJobThatNeedsIt) {
  Job a(3);
  a.job.begin(a.now);
  a.job.on_hello(0, Hello(), a.now);
  EXPECT_EQ(text_of(a.job.on_shell_end(2, "refused", a.now)), "hang_up 2");
  // The third has a moment to say what is wrong with it.
  EXPECT_EQ(a.after(seconds(2)), "hang_up 0, hang_up 1, finish");
  EXPECT_FALSE(a.job.started());
  EXPECT_EQ(a.job.ends()[2].words, "refused");
  a.job.on_shell_end(0, "hung up", a.now);
  EXPECT_EQ(a.job.ends()[0].kind, HostEnd::Kind::running) << "it was not its fault";
}

TEST(HostJob, AnElasticJobBeginsWithoutIt) {
  Job a(3, 2);
  a.job.begin(a.now);
  a.job.on_hello(0, Hello(), a.now);
  a.job.on_hello(1, Hello(), a.now);
  EXPECT_EQ(text_of(a.job.on_shell_end(2, "refused", a.now)), "hang_up 2, start 0, start 1");
  Job b(3, 2);  // but not without the one that serves
  b.job.begin(b.now);
  b.job.on_hello(1, Hello(), b.now);
  b.job.on_hello(2, Hello(), b.now);
  EXPECT_EQ(text_of(b.job.on_shell_end(0, "refused", b.now)), "hang_up 0, hang_up 1, hang_up 2, finish");
}

TEST(HostJob, ASilentStartIsGivenUp) {
  Job a(2, 1);
  a.job.begin(a.now);
  a.job.on_hello(0, Hello(), a.now);
  a.now += seconds(59);
  a.job.on_heard(0, a.now);
  EXPECT_EQ(a.after(seconds(1)), "hang_up 1, start 0");
  EXPECT_EQ(a.job.ends()[1].words, "no ddprun answered within 60 s");
}

TEST(HostJob, AnotherVersionIsNotUsed) {
  Job a(1);
  a.job.begin(a.now);
  Hello hello;
  hello.version = 9;
  EXPECT_EQ(text_of(a.job.on_hello(0, hello, a.now)), "hang_up 0, finish");
  EXPECT_THAT(a.job.ends()[0].words, testing::HasSubstr("another version"));
}

TEST(HostJob, ALostHostEndsAFixedJobAtOnce) {
  Job a(3);
  a.run();
  EXPECT_EQ(text_of(a.job.on_shell_end(1, "closed", a.now)), "hang_up 1, signal 0 15, signal 2 15");
  EXPECT_EQ(text_of(a.job.on_end(0, End{143, "", ""}, a.now)), "");
  EXPECT_EQ(text_of(a.job.on_end(2, End{143, "", ""}, a.now)), "finish");
}

TEST(HostJob, ALostHostIsNoMatterToAnElasticJob) {
  Job a(3, 2);
  a.run();
  EXPECT_EQ(text_of(a.job.on_shell_end(2, "closed", a.now)), "hang_up 2");
  EXPECT_EQ(text_of(a.job.on_shell_end(1, "closed", a.now)), "hang_up 1, signal 0 15");
  Job b(3, 1);  // the one that serves is
  b.run();
  EXPECT_EQ(text_of(b.job.on_shell_end(0, "closed", b.now)), "hang_up 0, signal 1 15, signal 2 15");
  Job c(3, 1, false);
  c.run();
  EXPECT_EQ(text_of(c.job.on_shell_end(0, "closed", c.now)), "hang_up 0");
}

TEST(HostJob, SilenceIsLoss) {
  Job a(2, 1, false);
  a.run();
  a.now += seconds(29);
  a.job.on_heard(0, a.now);
  EXPECT_EQ(a.after(seconds(1)), "hang_up 1");
  EXPECT_THAT(a.job.ends()[1].words, testing::HasSubstr("silent for 30 s"));
}

TEST(HostJob, AFailedNodeGivesTheOthersTimeToHearOfIt) {
  Job a(2);
  a.run();
  EXPECT_EQ(text_of(a.job.on_end(1, End{3, "", ""}, a.now)), "");
  a.hear_all();
  EXPECT_EQ(a.after(HostJob::kOthersEnd - milliseconds(1)), "");
  EXPECT_EQ(a.after(milliseconds(1)), "signal 0 15");
}

TEST(HostJob, SignalsReachAllAndHaveAnEnd) {
  Job a(2);
  a.run();
  EXPECT_EQ(text_of(a.job.on_signal(SIGUSR1, false, a.now)), "signal 0 10, signal 1 10");
  EXPECT_EQ(text_of(a.job.on_signal(SIGTERM, true, a.now)), "signal 0 15, signal 1 15");
  EXPECT_EQ(a.job.stopped_by(), SIGTERM);
  EXPECT_EQ(text_of(a.job.on_end(0, End{143, "", ""}, a.now)), "");
  for (int i = 0; i < 49; ++i) {
    a.hear_all();
    EXPECT_EQ(a.after(seconds(1)), "");
  }
  a.hear_all();
  EXPECT_EQ(a.after(seconds(1)), "hang_up 1, finish");  // 30 s of patience and 20
  Job b(2);                                             // impatience: 10 s after the second
  b.run();
  b.job.on_signal(SIGINT, true, b.now);
  EXPECT_EQ(text_of(b.job.on_signal(SIGINT, true, b.now)), "signal 0 2, signal 1 2");
  b.hear_all();
  EXPECT_EQ(b.after(HostJob::kImpatience), "hang_up 0, hang_up 1, finish");
  Job c(2);
  c.job.begin(c.now);
  EXPECT_EQ(text_of(c.job.on_signal(SIGINT, true, c.now)), "hang_up 0, hang_up 1, finish");
}

TEST(HostJob, WhatComesTooLateChangesNothing) {
  Job a(2, 1);
  a.run();
  a.job.on_shell_end(1, "closed", a.now);
  EXPECT_EQ(text_of(a.job.on_end(1, End{0, "", ""}, a.now)), "");
  EXPECT_EQ(text_of(a.job.on_shell_end(1, "again", a.now)), "");
  EXPECT_EQ(text_of(a.job.on_hello(1, Hello(), a.now)), "");
  EXPECT_EQ(a.job.ends()[1].words, "closed");
}

}  // namespace
}  // namespace ddprun::launcher::hosts
