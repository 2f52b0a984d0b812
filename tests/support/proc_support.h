#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/patient_group.h"

// For tests of the launcher's process side: real workers that are shell scripts.
namespace ddprun::launcher::testing {

constexpr std::chrono::seconds kHardLimit{60};

// A folder of its own; gone with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);
std::vector<std::string> files_below(const std::string& folder);  // relative paths, sorted

// Polls until `condition` holds; false after the hard limit.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit = kHardLimit);
// Not there, or a zombie (PID 1 may reap late).
bool is_dead(pid_t pid);
std::size_t open_descriptors();  // of this process

// Runs the coroutine to its end on `io`; aborts the test binary after the hard limit.
void run(boost::asio::io_context& io, boost::asio::awaitable<void> task);

// Options whose console is a pair of files in `folder`: console.out and console.err.
struct Harness {
  Harness();
  ~Harness();
  std::string console_out() const { return read_file(folder / "console.out"); }
  std::string console_err() const { return read_file(folder / "console.err"); }
  std::unique_ptr<PatientGroup> make() { return std::make_unique<PatientGroup>(io, options); }
  // `count` workers that run `script` with sh; $RANK, $LOCAL_RANK and $T (the folder) are set.
  std::vector<WorkerSpec> workers(const std::string& script, int count, std::int64_t restart_count = 0) const;

  TempFolder folder;
  boost::asio::io_context io{1};
  WorkerGroupOptions options;
};

// Waits for all workers, then for their output; what each local rank ended with.
std::vector<WorkerExit> finish(Harness& harness, PatientGroup& group);

}  // namespace ddprun::launcher::testing
