#include "launcher/life/worker_tally.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/exit_code.h"

namespace ddprun::launcher {

namespace {

bool saved(const WorkerEnd& end) { return end.signal == 0 && end.code == exit_code::kResumeMe; }

}  // namespace

WorkerTally::Verdict WorkerTally::on(const WorkerEnd& end) {
  const auto index = static_cast<std::size_t>(end.worker.value);
  if (index >= ends_.size() || ends_[index]) return Verdict::carry_on;
  ends_[index] = end;
  if (end.asked) return Verdict::carry_on;
  if (saved(end) && !first_saved_) first_saved_ = end.worker;
  if (!end.success() && !saved(end)) {
    blamed_ = end.worker;
    return Verdict::failed;
  }
  if (!all_ended()) return Verdict::carry_on;
  if (!first_saved_) return Verdict::finished;
  if (all_saved()) return Verdict::resumable;
  blamed_ = first_saved_;  // some want to go on, some are through: no state that one can resume
  return Verdict::failed;
}

WorkerTally::Verdict WorkerTally::nobody_followed() {
  if (!first_saved_) return Verdict::carry_on;
  blamed_ = first_saved_;
  return Verdict::failed;
}

bool WorkerTally::runs(LocalRank worker) const {
  const auto index = static_cast<std::size_t>(worker.value);
  return index < ends_.size() && !ends_[index];
}

std::vector<LocalRank> WorkerTally::running() const {
  std::vector<LocalRank> out;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (!ends_[i]) out.push_back(LocalRank(static_cast<std::int64_t>(i)));
  }
  return out;
}

bool WorkerTally::all_ended() const {
  return std::all_of(ends_.begin(), ends_.end(), [](const auto& end) { return end.has_value(); });
}

bool WorkerTally::all_saved() const {
  return std::all_of(ends_.begin(), ends_.end(), [](const auto& end) { return end && saved(*end); });
}

const WorkerEnd* WorkerTally::end_of(LocalRank worker) const {
  const auto index = static_cast<std::size_t>(worker.value);
  return index < ends_.size() && ends_[index] ? &*ends_[index] : nullptr;
}

const WorkerEnd* WorkerTally::blamed() const { return blamed_ ? end_of(*blamed_) : nullptr; }

std::vector<const WorkerEnd*> WorkerTally::early_finishers() const {
  std::vector<const WorkerEnd*> out;
  for (const auto& end : ends_) {
    if (end && end->success() && !end->asked) out.push_back(&*end);
  }
  return out;
}

std::string ranks_text(const std::vector<LocalRank>& workers, Rank first, std::size_t limit) {
  std::string text = workers.size() == 1 ? "rank " : "ranks ";
  std::size_t pieces = 0;
  for (std::size_t i = 0; i < workers.size(); ++pieces) {
    if (pieces == limit) return text + fmt::format(" and {} more", workers.size() - i);
    std::size_t last = i;
    while (last + 1 < workers.size() && workers[last + 1].value == workers[last].value + 1) ++last;
    if (pieces > 0) text += ", ";
    text += std::to_string(first.value + workers[i].value);
    if (last > i) text += (last == i + 1 ? ", " : "..") + std::to_string(first.value + workers[last].value);
    i = last + 1;
  }
  return text;
}

}  // namespace ddprun::launcher
