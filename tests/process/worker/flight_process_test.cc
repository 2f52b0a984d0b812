#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

// The flight recorder from a real job: `ddpctl flight` while a rank is stopped, and the launcher's last words.
namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class Flight : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "ddprun-flight-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (launcher_ > 0) {
      ::kill(launcher_, SIGKILL);  // its guard ends the workers
      ::waitpid(launcher_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  void start(const std::vector<std::string>& arguments) {
    launcher_ = ::fork();
    ASSERT_GE(launcher_, 0);
    if (launcher_ == 0) {
      const int fd = ::open((folder_ / "log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      ::dup2(fd, 1);
      ::dup2(fd, 2);
      std::vector<char*> argv;
      for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }

  template <typename Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 1200; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

  std::string log() const { return text_of(folder_ / "log"); }

  // Its descendant with RANK=`rank`.
  pid_t worker(int rank) const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string pid = entry.path().filename().string();
      if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string environment = text_of(entry.path() / "environ");
      const std::string name = text_of(entry.path() / "comm");
      if (name == "trainer\n" && environment.find("DDPRUN_TEST=" + folder_.string()) != std::string::npos &&
          ("\0" + environment).find(std::string("\0RANK=", 6) + std::to_string(rank) + '\0') != std::string::npos) {
        return std::stoi(pid);
      }
    }
    return 0;
  }

  std::string run(const std::string& command) const {
    std::string text;
    std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
    char buffer[4096];
    while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
    ::pclose(pipe);
    return text;
  }

  std::filesystem::path folder_;
  pid_t launcher_ = -1;
};

TEST_F(Flight, OperatorAndLastWordsNameTheMissingRank) {
  ::setenv("DDPRUN_TEST", folder_.c_str(), 1);
  const std::string bin = DDPRUN_BINARY_DIR;
  start({bin + "/ddprun", "--standalone", "--nproc-per-node=2", "--rdzv-id=flight", bin + "/trainer", "bench",
         "all-reduce", "--size", "64KiB", "--rounds", "100000000", "--timeout", "40"});
  ASSERT_TRUE(eventually([&] { return log().find("# all-reduce over") != std::string::npos; })) << log();
  const std::string text = log();
  const std::size_t at = text.find("endpoint=") + 9;
  const std::string endpoint = text.substr(at, text.find_first_of(" \n", at) - at);
  const std::string ask = bin + "/ddpctl --rdzv-endpoint " + endpoint + " flight ";

  const pid_t stopped = worker(1);
  ASSERT_GT(stopped, 0);
  ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
  // Rank 0 waits for it from then on, whatever it was doing at that moment.
  std::string answer;
  EXPECT_TRUE(eventually([&] {
    answer = run(ask + "flight --last 3");
    return answer.find("in all_reduce #") != std::string::npos;
  })) << answer;
  EXPECT_THAT(answer, AllOf(HasSubstr("of 16384 f32"), HasSubstr("rank 0 of 2"), HasSubstr("rank 1 of 2")));
  EXPECT_THAT(run(ask + "nojob"), HasSubstr("nojob"));

  ASSERT_EQ(::kill(stopped, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(launcher_, &status, 0), launcher_);
  launcher_ = -1;
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_THAT(log(), AllOf(HasSubstr("rank 1"), HasSubstr("Collectives: "), HasSubstr("in all_reduce #")));
}

}  // namespace
}  // namespace ddprun
