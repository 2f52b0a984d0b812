#include "common/job_settings.h"

#include <string_view>
#include <type_traits>

#include "common/rdzv_fields.h"

namespace ddprun {
namespace {

template <typename T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(to_word(value));
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else {
    return std::to_string(value.count()) + " ms";
  }
}

// All that `option` sets: "2:4", or "2" where all are the same.
std::string text_of(const JobSettings& job, std::string_view option) {
  std::string all, last;
  for_each_field(job, [&](const auto& field, const auto& value) {
    if (field.option != option) return;
    const std::string text = text_of(value);
    if (text != last) all += (all.empty() ? "" : ":") + text;
    last = text;
  });
  return all;
}

}  // namespace

std::string lease_too_long(const JobSettings& job) {
  const auto seconds = [](std::chrono::milliseconds t) {
    return std::to_string(std::chrono::ceil<std::chrono::seconds>(t).count()) + " s";
  };
  return "keep_alive_interval x keep_alive_max_attempt is " + seconds(job.lease()) + "; at most " + seconds(kMaxLease) +
         " are allowed, since a node that is cut off may keep the others waiting so long";
}

std::optional<SettingsDiffer> first_difference(const JobSettings& left, const JobSettings& right) {
  std::optional<SettingsDiffer> found;
  for_each_field(left, [&](const auto& field, const auto& value) {
    if (!found && value != right.*(field.member)) found = SettingsDiffer{field.option, "", ""};
  });
  if (!found) return std::nullopt;
  found->left = text_of(left, found->option);
  found->right = text_of(right, found->option);
  return found;
}

}  // namespace ddprun
