// Our store client against any server of the protocol: store_client_calls HOST PORT [no-queues] [no-barrier].
// Prints "all calls ok", or the first that was not.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/store_client.h"

namespace {

using namespace ddprun;
using namespace std::chrono_literals;

int g_line = 0;

[[noreturn]] void fail(const char* what, const std::string& detail) {
  std::printf("line %d: %s: %s\n", g_line, what, detail.c_str());
  std::exit(1);
}

template <typename T>
T need(Result<T> result, const char* what) {
  if (!result) fail(what, result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

void expect(bool condition, const char* what) {
  if (!condition) fail(what, "not so");
}

#define NEED(call) (g_line = __LINE__, need(call, #call))
#define EXPECT(condition) (g_line = __LINE__, expect(condition, #condition))

TimePoint in(std::chrono::milliseconds d) { return SteadyClock::now() + d; }

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  bool queues = true;
  bool barrier = true;
  for (int i = 3; i < argc; ++i) {
    if (std::strcmp(argv[i], "no-queues") == 0) queues = false;
    if (std::strcmp(argv[i], "no-barrier") == 0) barrier = false;
  }
  StoreClientOptions options;
  options.endpoint = {argv[1], static_cast<std::uint16_t>(std::atoi(argv[2]))};
  auto store = NEED(StoreClient::connect(options));
  auto other = NEED(store.clone());

  NEED(store.set("k", "v"));
  EXPECT(NEED(store.get("k")) == "v");
  NEED(store.set_confirmed("k", ""));
  EXPECT(NEED(other.get("k")).empty());
  EXPECT(NEED(store.try_get("k")) == "");
  EXPECT(!NEED(store.try_get("missing")));
  EXPECT(NEED(store.add("n", 5)) == 5);
  EXPECT(NEED(store.add("n", -7)) == -2);
  EXPECT(NEED(store.compare_set("c", "old", "new")) == "old");
  EXPECT(NEED(store.compare_set("c", "", "new")) == "new");
  EXPECT(NEED(store.compare_set("c", "other", "x")) == "new");
  const std::vector<std::string> some{"k", "n", "c"};
  const std::vector<std::string> more{"k", "n", "not there", "nor this"};
  EXPECT(NEED(store.check(some)));
  EXPECT(!NEED(store.check(more)));
  NEED(store.wait(some, in(60s)));
  g_line = __LINE__;
  const auto late = store.wait_for_keys(more, in(100ms), "the address of rank 3");
  EXPECT(!late && late.error().code() == Errc::timed_out);
  EXPECT(late.error().message().find("waiting for the address of rank 3: missing 2 of 4: not there, nor this") !=
         std::string::npos);
  EXPECT(NEED(store.get("k")).empty());
  EXPECT(NEED(store.delete_key("k")));
  EXPECT(!NEED(store.delete_key("k")));
  NEED(store.append("a", "ab"));
  NEED(store.append("a", std::string("c\0d", 3)));
  EXPECT(NEED(store.get("a")) == std::string("abc\0d", 5));
  std::vector<std::string> keys;
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int i = 0; i < 1000; ++i) {
    keys.push_back("multi/" + std::to_string(i));
    pairs.emplace_back(keys.back(), std::string(static_cast<std::size_t>(i), 'x'));
  }
  NEED(store.multi_set(pairs));
  const auto values = NEED(store.multi_get(keys, in(60s)));
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT(values[i] == pairs[i].second);
  const std::string big(std::size_t{8} << 20, 'b');
  NEED(store.set("big", big));
  EXPECT(NEED(store.get("big")) == big);
  EXPECT(NEED(store.num_keys()) >= 1004);
  const auto listed = NEED(store.list_keys());
  EXPECT(listed.size() >= 1004 && std::is_sorted(listed.begin(), listed.end()));
  std::thread waker([&other] {
    std::this_thread::sleep_for(20ms);
    (void)other.set("late", "now");
  });
  EXPECT(NEED(store.get("late", in(60s))) == "now");
  waker.join();

  if (queues) {
    EXPECT(NEED(store.queue_len("q")) == 0);
    EXPECT(!NEED(store.queue_try_pop("q")));
    NEED(store.queue_push("q", "1"));
    NEED(store.queue_push("q", ""));
    EXPECT(NEED(store.queue_len("q")) == 2);
    EXPECT(NEED(store.queue_pop("q", in(60s))) == "1");
    EXPECT(NEED(store.queue_pop("q", in(60s))).empty());
    g_line = __LINE__;
    const auto none = store.queue_pop("q", in(50ms));
    EXPECT(!none && none.error().code() == Errc::timed_out);
  }
  if (barrier) {
    std::thread second([&other] { (void)other.barrier("b", 2, in(60s)); });
    NEED(store.barrier("b", 2, in(60s)));
    second.join();
    g_line = __LINE__;
    const auto alone = store.barrier("alone", 3, in(50ms));
    EXPECT(!alone && alone.error().message().find("1 of 3 arrived") != std::string::npos);
  }
  NEED(store.ping());
  std::printf("all calls ok\n");
  return 0;
}
