#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/key_value.h"

// Ranks as forked processes, for tests of communicators.
namespace ddprun::testing {

// A store in memory that was shared before the fork.
class SharedKeyValue final : public comm::KeyValue {
 public:
  SharedKeyValue();
  ~SharedKeyValue() override;
  SharedKeyValue(const SharedKeyValue&) = delete;
  SharedKeyValue& operator=(const SharedKeyValue&) = delete;

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, TimePoint deadline) override;
  Result<void> erase(std::string_view key) override;

 private:
  struct Table;
  Table* table_;
};

struct RankContext {
  int rank = 0;
  int size = 1;
  comm::KeyValue* store = nullptr;
  std::string address = "127.0.0.1";  // where this rank's ring listens
};

struct RankOutcome {
  int exit_code = -1;
  int signal = 0;
  bool overran = false;  // had to be killed at the limit
  std::string text;      // what the rank's function returned
};

using Meanwhile = std::function<void(const std::vector<int>& pids, comm::KeyValue& store)>;

// Runs `body` in `size` forked processes; its text comes back. `meanwhile` runs in the parent (to kill or stop some).
// All are killed at the limit and reaped.
std::vector<RankOutcome> run_ranks(int size, const std::function<std::string(RankContext&)>& body,
                                   std::chrono::seconds limit = std::chrono::seconds(60),
                                   const Meanwhile& meanwhile = {});

// All texts empty, all exited 0: "" or what is wrong.
std::string problems(const std::vector<RankOutcome>& outcomes);

enum class Kind {
  shm,           // one host
  shm_threads,   // the same with a progress thread
  tcp,           // one rank on each "host", over loopback
  two_hosts,     // shared memory and TCP: the first half of the ranks and the rest
  uneven_hosts,  // one rank on the first host, the others on the second
};
const char* name_of(Kind kind);

Result<std::unique_ptr<comm::Communicator>> make_test_communicator(Kind kind, RankContext& context,
                                                                   std::chrono::milliseconds timeout,
                                                                   const std::string& name = "test");

// Polls until `condition` or 60 s have passed.
bool eventually(const std::function<bool()>& condition);

}  // namespace ddprun::testing

// In a rank's body: returns a text that says where and what.
#define RANK_CHECK(condition)                                                                  \
  do {                                                                                         \
    if (!(condition)) return "line " + std::to_string(__LINE__) + ": " #condition " is false"; \
  } while (false)
#define RANK_OK(expression)                                                                      \
  do {                                                                                           \
    if (auto&& ok_ = (expression); !ok_)                                                         \
      return "line " + std::to_string(__LINE__) + ": " #expression ": " + ok_.error().message(); \
  } while (false)
