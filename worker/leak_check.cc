#include "worker/leak_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iterator>

namespace ddprun::trainer {
namespace {

double mb(std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

std::int64_t entries(const char* folder) {
  std::error_code failed;
  std::int64_t count = 0;
  for (std::filesystem::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) ++count;
  return failed ? -1 : count;
}

}  // namespace

std::int64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  long long pages = 0;
  const int got = std::fscanf(file, "%*d %lld", &pages);
  std::fclose(file);
  return got == 1 ? pages * ::sysconf(_SC_PAGESIZE) : 0;
}

Result<ResourceUse> measure_resources() {
  ResourceUse use;
  use.rss_bytes = resident_bytes();
  use.descriptors = entries("/proc/self/fd") - 1;  // the one of the listing itself
  use.threads = entries("/proc/self/task");
  if (use.rss_bytes == 0 || use.descriptors < 0 || use.threads < 0) {
    return Error(Errc::system, "cannot read /proc/self: no memory check");
  }
  return use;
}

std::string growth(const ResourceUse& before, const ResourceUse& now) {
  std::string text;
  const auto add = [&text](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (now.arena_bytes > before.arena_bytes) {
    add(fmt::format("arena +{:.1f} MB", mb(now.arena_bytes - before.arena_bytes)));
  }
  if (now.rss_bytes > before.rss_bytes + before.rss_bytes / 50 + 8'000'000) {
    add(fmt::format("resident memory +{:.1f} MB", mb(now.rss_bytes - before.rss_bytes)));
  }
  if (now.device_bytes > before.device_bytes + before.device_bytes / 50) {
    add(fmt::format("device memory +{:.1f} MB", mb(now.device_bytes - before.device_bytes)));
  }
  if (now.descriptors > before.descriptors) add(fmt::format("descriptors +{}", now.descriptors - before.descriptors));
  if (now.threads > before.threads) add(fmt::format("threads +{}", now.threads - before.threads));
  if (now.works > before.works) add(fmt::format("live Work handles +{}", now.works - before.works));
  if (now.dropped > before.dropped) {
    add(fmt::format("Work handles dropped without wait +{}", now.dropped - before.dropped));
  }
  return text;
}

std::string describe(const ResourceUse& use) {
  std::string text = fmt::format("memory {:.1f} MB resident, arena {:.1f} MB", mb(use.rss_bytes), mb(use.arena_bytes));
  if (use.device_bytes > 0) text += fmt::format(", device {:.1f} MB", mb(use.device_bytes));
  text += fmt::format(", {} descriptors, {} threads, {} live Work handles", use.descriptors, use.threads, use.works);
  if (use.dropped > 0) text += fmt::format(", {} dropped without wait", use.dropped);
  return text;
}

}  // namespace ddprun::trainer
