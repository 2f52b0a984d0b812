#include "worker/run/launcher_mark.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>

#include "common/options.h"
#include "worker/run/agree.h"

namespace ddprun::trainer {

std::int64_t launcher_mark() {
  const std::string token = process_environment()("DDPRUN_JOB_TOKEN").value_or("");
  // "PID.DIGITS", 16 random hexadecimal ones.
  const char* end = token.data() + token.size();
  std::uint64_t digits = 0;
  const std::size_t dot = token.rfind('.');
  if (dot == std::string::npos || std::from_chars(token.data() + dot + 1, end, digits, 16).ptr != end) return 0;
  return static_cast<std::int64_t>(digits >> 1);
}

Result<std::vector<std::int64_t>> gather_launchers(comm::Communicator& communicator) {
  auto all = numbers_of_all(communicator, launcher_mark());
  if (!all) return std::move(all).error();
  std::sort(all->begin(), all->end());
  all->erase(std::unique(all->begin(), all->end()), all->end());
  std::erase(*all, 0);
  return all;
}

bool share_one(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  std::vector<std::int64_t> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return !common.empty();
}

}  // namespace ddprun::trainer
