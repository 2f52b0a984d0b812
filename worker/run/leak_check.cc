#include "worker/run/leak_check.h"

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

struct Held {
  const char* name;
  std::int64_t ResourceUse::*value;
  std::int64_t slack_bytes;  // allocators keep what they free
  bool relative_slack;       // 2 % more
  bool bytes;
};

constexpr Held kHeld[] = {
    {"arena", &ResourceUse::arena_bytes, 0, false, true},
    {"resident memory", &ResourceUse::rss_bytes, 8'000'000, true, true},
    {"device memory", &ResourceUse::device_bytes, 0, true, true},
    {"descriptors", &ResourceUse::descriptors, 0, false, false},
    {"threads", &ResourceUse::threads, 0, false, false},
};

bool grew(const Held& held, const ResourceUse& from, const ResourceUse& to) {
  const std::int64_t before = from.*held.value;
  return to.*held.value > before + held.slack_bytes + (held.relative_slack ? before / 50 : 0);
}

// What grew from `last` to `now`, and from `before` to `last` too. Without `before` only what may never happen.
std::string growth(const ResourceUse* before, const ResourceUse& last, const ResourceUse& now) {
  std::string text;
  const auto add = [&text](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  for (const Held& held : kHeld) {
    if (before == nullptr || !grew(held, *before, last) || !grew(held, last, now)) continue;
    const std::int64_t more = now.*held.value - before->*held.value;
    add(held.bytes ? fmt::format("{} +{:.1f} MB", held.name, mb(more)) : fmt::format("{} +{}", held.name, more));
  }
  if (now.works > last.works) add(fmt::format("live Work handles +{}", now.works - last.works));
  if (now.dropped > last.dropped) {
    add(fmt::format("Work handles dropped without wait +{}", now.dropped - last.dropped));
  }
  return text;
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

std::string GrowthWatch::next(const ResourceUse& now) {
  std::string text;
  if (measured_ >= 2) text = growth(&before_, last_, now);
  if (measured_ == 1) text = growth(nullptr, last_, now);
  before_ = last_;
  last_ = now;
  ++measured_;
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
