#include "worker/ranks/launcher_mark.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>

#include "common/options.h"
#include "worker/ranks/agree.h"

namespace ddprun::trainer {

std::int64_t launcher_mark() {
  const std::string token = process_environment()("DDPRUN_JOB_TOKEN").value_or("");
  // "PID.DIGITS.ATTEMPT": 16 random hexadecimal digits; the attempt is of the launcher's own concern.
  const std::size_t dot = token.find('.');
  if (dot == std::string::npos) return 0;
  const char* const begin = token.data() + dot + 1;
  const char* const end = token.data() + std::min(token.find('.', dot + 1), token.size());
  std::uint64_t digits = 0;
  if (std::from_chars(begin, end, digits, 16).ptr != end) return 0;
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
