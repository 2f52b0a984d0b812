#include "rendezvous/membership/rank_order.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>

namespace ddprun::rendezvous {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// The run of digits at the front, without leading zeros; `text` loses it.
std::string_view take_number(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (a.front() != b.front()) return a.front() < b.front();
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // "a01" and "a1"
}

std::vector<std::size_t> rank_order(const std::vector<RankCandidate>& nodes) {
  std::vector<std::size_t> old;
  std::vector<std::size_t> fresh;
  for (std::size_t i = 0; i < nodes.size(); ++i) (nodes[i].place ? old : fresh).push_back(i);
  std::sort(old.begin(), old.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(*nodes[a].place, nodes[a].arrival) < std::tie(*nodes[b].place, nodes[b].arrival);
  });
  std::sort(fresh.begin(), fresh.end(), [&](std::size_t a, std::size_t b) {
    if (nodes[a].topology_key != nodes[b].topology_key)
      return natural_less(nodes[a].topology_key, nodes[b].topology_key);
    if (nodes[a].host != nodes[b].host) return natural_less(nodes[a].host, nodes[b].host);
    return nodes[a].arrival < nodes[b].arrival;
  });

  // Holes below the last survivor, filled by newcomers of the neighbours' key first, then by the rest in order.
  std::vector<std::size_t> order;
  order.reserve(nodes.size());
  std::vector<bool> used(nodes.size(), false);
  std::size_t first_unused = 0;
  std::map<std::string_view, std::vector<std::size_t>> by_key;  // fresh, last first, so that pop_back takes the first
  for (auto it = fresh.rbegin(); it != fresh.rend(); ++it) by_key[nodes[*it].topology_key].push_back(*it);
  const auto take_fresh = [&](std::string_view key) -> std::optional<std::size_t> {
    auto& same = by_key[key];
    while (!same.empty() && used[same.back()]) same.pop_back();
    std::size_t chosen = 0;
    if (!same.empty()) {
      chosen = same.back();
    } else {
      while (first_unused < fresh.size() && used[fresh[first_unused]]) ++first_unused;
      if (first_unused == fresh.size()) return std::nullopt;
      chosen = fresh[first_unused];
    }
    used[chosen] = true;
    return chosen;
  };
  std::int64_t next_place = 0;
  for (const std::size_t i : old) {
    for (; next_place < *nodes[i].place; ++next_place) {
      const auto filler = take_fresh(nodes[i].topology_key);
      if (!filler) {
        next_place = *nodes[i].place;
        break;
      }
      order.push_back(*filler);
    }
    order.push_back(i);
    ++next_place;
  }

  // The rest, behind their key. `fresh` is grouped by key, so one pass over the order per key is enough.
  std::vector<std::size_t> rest;
  for (const std::size_t i : fresh) {
    if (!used[i]) rest.push_back(i);
  }
  if (!rest.empty()) {
    std::map<std::string_view, std::size_t> last_of_key;  // position in `order`
    for (std::size_t p = 0; p < order.size(); ++p) {
      if (!nodes[order[p]].topology_key.empty()) last_of_key[nodes[order[p]].topology_key] = p;
    }
    std::map<std::size_t, std::vector<std::size_t>> behind;  // position -> nodes that follow it
    std::vector<std::size_t> at_end;
    for (const std::size_t i : rest) {
      const auto found = last_of_key.find(nodes[i].topology_key);
      (found != last_of_key.end() ? behind[found->second] : at_end).push_back(i);
    }
    std::vector<std::size_t> merged;
    merged.reserve(nodes.size());
    for (std::size_t p = 0; p < order.size(); ++p) {
      merged.push_back(order[p]);
      if (const auto found = behind.find(p); found != behind.end()) {
        merged.insert(merged.end(), found->second.begin(), found->second.end());
      }
    }
    merged.insert(merged.end(), at_end.begin(), at_end.end());
    order = std::move(merged);
  }

  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (nodes[a].hint.has_value() != nodes[b].hint.has_value()) return nodes[a].hint.has_value();
    return nodes[a].hint && *nodes[a].hint < *nodes[b].hint;
  });
  return order;
}

}  // namespace ddprun::rendezvous
