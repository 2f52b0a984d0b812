#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/process/worker/trainer_support.h"

// A run of 300 steps on 2 ranks under ddprun that is killed with SIGKILL at random moments, also while it saves, ends
// with the very parameters of an undisturbed one. DDPRUN_SOAK_KILLS: how many kills (default 6; 50 by hand).
namespace ddprun::testing {
namespace {

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  DIR* proc = ::opendir("/proc");
  for (dirent* entry = ::readdir(proc); entry != nullptr; entry = ::readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    std::FILE* stat = std::fopen(fmt::format("/proc/{}/stat", pid).c_str(), "r");
    if (stat == nullptr) continue;
    int ppid = 0;
    char name[64] = {};
    if (std::fscanf(stat, "%*d (%63[^)]) %*c %d", name, &ppid) == 2 && ppid == parent &&
        std::string(name) == "trainer") {
      found.push_back(pid);
    }
    std::fclose(stat);
  }
  ::closedir(proc);
  return found;
}

std::string without_speed(const std::string& text) {
  std::string all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) json.erase("samples_per_s");
    all += json.dump() + "\n";
  }
  return all;
}

TEST(TrainerSoak, KilledAtRandomMomentsItEndsWithTheSameParameters) {
  const char* wanted = std::getenv("DDPRUN_SOAK_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 6;
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(fmt::format("random seed {}", seed));
  std::mt19937 random(seed);

  TrainerRunner trainer;
  trainer.write_csv("data.csv", 600, 20);
  trainer.set("data.shuffle", "true");
  trainer.set("data.batch_size", "3");
  trainer.set("train.epochs", "3");  // 300 steps
  trainer.set("optimizer.momentum", "0.9");
  trainer.set("optimizer.lr", "0.01");
  trainer.set("output.params", trainer.path("whole.json"));
  trainer.set("output.metrics", trainer.path("whole.jsonl"));
  trainer.set("output.indices", trainer.path("whole"));
  const Finished whole = trainer.run(2);
  ASSERT_EQ(whole.code, 0) << said(whole);

  trainer.set("train.step_delay_ms", "4");
  trainer.set("checkpoint.dir", trainer.path("ck"));
  trainer.set("checkpoint.every_steps", "2");
  trainer.set("checkpoint.keep", "2");
  trainer.set("output.params", trainer.path("p.json"));
  trainer.set("output.metrics", trainer.path("m.jsonl"));
  trainer.set("output.indices", trainer.path("parts"));
  // Half of the kills hit a worker, which the launcher starts again; the others all of the job, which we start again.
  int done = 0;
  for (int starts = 0; done < kills; ++starts) {
    ASSERT_LT(starts, 20 * kills + 20);
    Running job = trainer.start(2, {"--max-restarts=1000"});
    for (bool alive = true; alive && done < kills;) {
      ::usleep(std::uniform_int_distribution<useconds_t>(20'000, 400'000)(random));
      const auto workers = children_of(job.pid());
      if (std::filesystem::exists(trainer.path("p.json"))) break;
      if (workers.empty()) {
        alive = ::kill(job.pid(), 0) == 0 && std::filesystem::exists(fmt::format("/proc/{}/exe", job.pid()));
        continue;
      }
      ++done;
      if (random() % 2 == 0) {
        ::kill(workers[random() % workers.size()], SIGKILL);
        continue;
      }
      job.signal(SIGKILL);
      for (const pid_t pid : workers) ::kill(pid, SIGKILL);
      alive = false;
    }
    if (std::filesystem::exists(trainer.path("p.json"))) {
      // It reached the end before the last kill: begin anew and go on killing.
      const Finished ended = job.wait();
      ASSERT_EQ(ended.code, 0) << said(ended);
      ASSERT_EQ(trainer.read("p.json"), trainer.read("whole.json"));
      if (done < kills) {
        std::filesystem::remove_all(trainer.path("ck"));
        std::filesystem::remove(trainer.path("p.json"));
      }
    } else if (done < kills) {
      job.wait();
    }
  }
  const Finished last = trainer.run(2);
  ASSERT_EQ(last.code, 0) << said(last);
  EXPECT_EQ(trainer.read("p.json"), trainer.read("whole.json"));
  EXPECT_EQ(without_speed(trainer.read("m.jsonl")), without_speed(trainer.read("whole.jsonl")));
  for (const char* rank : {"/rank-0.txt", "/rank-1.txt"}) {
    EXPECT_EQ(trainer.read(std::string("parts") + rank), trainer.read(std::string("whole") + rank));
  }
}

}  // namespace
}  // namespace ddprun::testing
