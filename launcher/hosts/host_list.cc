#include "launcher/hosts/host_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/options.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr std::int64_t kMaxSlots = 100'000;
constexpr std::size_t kMaxHosts = 10'000;

constexpr std::string_view kNameCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

Error bad(const std::string& where, std::string_view message) {
  return Error(Errc::invalid_argument, usage_sentence(fmt::format("{}: {}", where, message)));
}

bool only(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

// What the name would be for a remote shell that takes words with a hyphen for options: refused.
Result<std::string> checked_name(std::string_view name) {
  const auto wrong = [&name](std::string_view why) {
    return Error(Errc::invalid_argument, fmt::format("'{}' is not a host: {}", name, why));
  };
  if (name.empty()) return wrong("it is empty");
  if (name.front() == '-') return wrong("it begins with '-', which a remote shell takes for an option");
  std::string_view host = name;
  if (const auto at = name.find('@'); at != std::string_view::npos) {
    if (!only(name.substr(0, at), kNameCharacters)) return wrong("before '@' stands no user's name");
    host = name.substr(at + 1);
    if (host.starts_with('-')) return wrong("after '@' stands '-', which a remote shell takes for an option");
  }
  const auto zone = host.find('%');
  const bool v6 = std::count(host.begin(), host.end(), ':') >= 2 &&
                  only(host.substr(0, zone), "0123456789abcdefABCDEF:.") &&
                  (zone == std::string_view::npos || only(host.substr(zone + 1), kNameCharacters));
  if (!v6 && !only(host, kNameCharacters)) {
    return wrong("a name has letters, digits, '.', '-' and '_', an IPv6 address stands in [brackets] before ':N'");
  }
  return std::string(name);
}

// "a", "a:2", "user@[fd00::1]:2", "fd00::1".
Result<Host> parse_entry(std::string_view text) {
  Host host;
  std::string name(text), slots;
  bool has_slots = false;
  if (const auto open = text.find('['); open != std::string_view::npos) {
    const auto close = text.find(']', open);
    const std::string_view after = close == std::string_view::npos ? "" : text.substr(close + 1);
    if (close == std::string_view::npos || (!after.empty() && after.front() != ':')) {
      return Error(Errc::invalid_argument, fmt::format("'{}': write [ADDRESS] or [ADDRESS]:N", text));
    }
    name = std::string(text.substr(0, open)) + std::string(text.substr(open + 1, close - open - 1));
    has_slots = !after.empty();
    if (has_slots) slots = after.substr(1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    const auto colon = text.find(':');
    name = text.substr(0, colon);
    slots = text.substr(colon + 1);
    has_slots = true;
  }
  auto checked = checked_name(name);
  if (!checked) return std::move(checked).error();
  host.name = *std::move(checked);
  if (has_slots) {
    auto number = parse_integer(slots, 1, kMaxSlots);
    if (!number) {
      return Error(Errc::invalid_argument,
                   fmt::format("'{}': the workers of {}: {}", text, host.name, number.error().message()));
    }
    host.slots = *number;
  }
  return host;
}

// Adds a host, or its workers to those that it has. `quiet`: the format means it so.
void add(HostList& list, Host host, const std::string& source, bool quiet) {
  const auto same = [&host](const Host& other) { return other.name == host.name; };
  const auto known = std::find_if(list.hosts.begin(), list.hosts.end(), same);
  if (known == list.hosts.end()) {
    list.hosts.push_back(std::move(host));
    return;
  }
  const std::int64_t before = known->slots.value_or(1), more = host.slots.value_or(1);
  known->slots = before + more;
  if (!quiet) {
    list.notes.push_back(
        fmt::format("{}: {} stands there twice: {} + {} = {} workers", source, host.name, before, more, before + more));
  }
}

Result<HostList> checked(HostList list, const std::string& source) {
  if (list.hosts.empty()) return bad(source, "there is no host in it");
  if (list.hosts.size() > kMaxHosts) return bad(source, fmt::format("more than {} hosts", kMaxHosts));
  return list;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < line.size();) {
    const auto begin = line.find_first_not_of(" \t\r", at);
    if (begin == std::string_view::npos || line[begin] == '#') break;
    const auto end = std::min(line.find_first_of(" \t\r", begin), line.size());
    out.emplace_back(line.substr(begin, end - begin));
    at = end;
  }
  return out;
}

// Reads each line that holds something by `read` (words -> Host).
template <typename Read>
Result<HostList> by_line(std::string_view text, const std::string& file, bool quiet, Read&& read) {
  HostList list;
  const auto lines = split(text, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto words = words_of(lines[i]);
    if (words.empty()) continue;
    Result<Host> host = read(words);
    if (!host) return bad(fmt::format("{}:{}", file, i + 1), host.error().message());
    add(list, *std::move(host), file, quiet);
  }
  return checked(std::move(list), file);
}

struct Choice {
  std::string name;
  std::vector<std::string> devices;
};

bool is_number(std::string_view text) { return only(text, "0123456789"); }

// "a@b:0,2" and "a,b:0,2": a comma before a number goes on with the devices, else with the next host.
Result<std::vector<Choice>> parse_choices(std::string_view text, const std::string& source) {
  std::vector<Choice> out;
  for (const auto& part : split(text, '@')) {
    for (const auto& item : split(part, ',')) {
      const std::string word = trimmed(item);
      if (is_number(word) && !out.empty() && !out.back().devices.empty()) {
        out.back().devices.push_back(word);
        continue;
      }
      Choice choice;
      const auto colon = word.rfind(':');
      const bool v6 = std::count(word.begin(), word.end(), ':') > 1 && word.find(']') == std::string::npos;
      choice.name = v6 ? word : word.substr(0, colon);
      std::erase(choice.name, '[');
      std::erase(choice.name, ']');
      if (!v6 && colon != std::string::npos && !word.ends_with(']')) {
        choice.devices.push_back(word.substr(colon + 1));
        if (!is_number(choice.devices.back())) {
          return bad(source, fmt::format("'{}': after ':' stand device numbers, as {}:0,2", word, choice.name));
        }
      }
      if (choice.name.empty()) return bad(source, fmt::format("'{}' has an empty name in it", text));
      out.push_back(std::move(choice));
    }
  }
  return out;
}

Result<Host*> find(HostList& list, const std::string& name, const std::string& source) {
  std::vector<std::string> names;
  for (auto& host : list.hosts) {
    if (host.name == name || host.address() == name) return &host;
    names.push_back(host.address());
  }
  const auto near = nearest_name(name, names);
  return bad(source, fmt::format("'{}' is not in the list of hosts{}", name,
                                 near ? fmt::format(" (did you mean {}?)", *near) : ""));
}

Result<void> check_device(const Host& host, const std::string& device, const std::string& source) {
  const auto number = parse_integer(device, 0, kMaxSlots);
  if (number && (!host.slots || *number < *host.slots)) return {};
  return bad(source, fmt::format("{} has {} slots, 0 to {}; there is no {}", host.name, host.slots.value_or(0),
                                 host.slots.value_or(1) - 1, device));
}

}  // namespace

std::string Host::address() const { return name.substr(name.find('@') == std::string::npos ? 0 : name.find('@') + 1); }

Result<HostList> parse_hosts(std::string_view text, const std::string& source) {
  HostList list;
  for (const auto& item : split(text, ',')) {
    const std::string word = trimmed(item);
    if (word.empty()) return bad(source, fmt::format("'{}' has an empty entry", text));
    auto host = parse_entry(word);
    if (!host) return bad(source, host.error().message());
    add(list, *std::move(host), source, false);
  }
  return checked(std::move(list), source);
}

Result<HostList> parse_hostfile(std::string_view text, const std::string& file) {
  return by_line(text, file, false, [](const std::vector<std::string>& words) -> Result<Host> {
    auto host = parse_entry(words.front());
    if (!host) return host;
    for (std::size_t i = 1; i < words.size(); ++i) {
      const auto equals = words[i].find('=');
      std::string key = words[i].substr(0, equals);
      std::replace(key.begin(), key.end(), '-', '_');
      if (key == "max_slots" && equals != std::string::npos) continue;  // an upper bound for others; ours is exact
      if (key != "slots" || equals == std::string::npos) {
        return Error(Errc::invalid_argument,
                     fmt::format("'{}' is not known; a line is NAME, NAME:N or NAME slots=N", words[i]));
      }
      auto number = parse_integer(words[i].substr(equals + 1), 1, kMaxSlots);
      if (!number) return Error(Errc::invalid_argument, "slots: " + number.error().message());
      if (host->slots) return Error(Errc::invalid_argument, "the number of workers stands there twice");
      host->slots = *number;
    }
    return host;
  });
}

Result<HostList> parse_slot_file(std::string_view text, const std::string& file) {
  return by_line(text, file, true, [](const std::vector<std::string>& words) -> Result<Host> {
    auto name = checked_name(words.front());
    if (!name) return std::move(name).error();
    Host host;
    host.name = *std::move(name);
    host.slots = 1;
    return host;
  });
}

Result<HostList> parse_pe_hostfile(std::string_view text, const std::string& file) {
  return by_line(text, file, true, [](const std::vector<std::string>& words) -> Result<Host> {
    if (words.size() < 2) return Error(Errc::invalid_argument, "a line is: HOST SLOTS QUEUE PROCESSORS");
    auto name = checked_name(words[0]);
    if (!name) return std::move(name).error();
    auto number = parse_integer(words[1], 1, kMaxSlots);
    if (!number) return Error(Errc::invalid_argument, "slots: " + number.error().message());
    Host host;
    host.name = *std::move(name);
    host.slots = *number;
    return host;
  });
}

Result<void> select_hosts(HostList& list, std::string_view include, std::string_view exclude) {
  if (!include.empty()) {
    auto choices = parse_choices(include, "--include");
    if (!choices) return std::move(choices).error();
    HostList kept;
    kept.notes = list.notes;
    for (const auto& choice : *choices) {
      auto host = find(list, choice.name, "--include");
      if (!host) return std::move(host).error();
      for (const auto& device : choice.devices) {
        if (auto known = check_device(**host, device, "--include"); !known) return known;
      }
      Host chosen = **host;
      chosen.devices = choice.devices;
      if (!chosen.devices.empty()) chosen.slots = static_cast<std::int64_t>(chosen.devices.size());
      const auto same = [&chosen](const Host& other) { return other.name == chosen.name; };
      if (std::any_of(kept.hosts.begin(), kept.hosts.end(), same)) {
        return bad("--include", fmt::format("{} stands there twice", chosen.name));
      }
      kept.hosts.push_back(std::move(chosen));
    }
    list = std::move(kept);
  }
  if (exclude.empty()) return {};
  auto choices = parse_choices(exclude, "--exclude");
  if (!choices) return std::move(choices).error();
  for (const auto& choice : *choices) {
    auto found = find(list, choice.name, "--exclude");
    if (!found) return std::move(found).error();
    Host& host = **found;
    if (!choice.devices.empty()) {
      if (host.devices.empty()) {
        if (!host.slots) {
          return bad("--exclude", fmt::format("the list does not say how many slots {} has, so none can be left out "
                                              "(write {}:N in it)",
                                              host.name, host.name));
        }
        for (std::int64_t i = 0; i < *host.slots; ++i) host.devices.push_back(std::to_string(i));
      }
      for (const auto& device : choice.devices) {
        if (std::erase(host.devices, device) == 0) {
          return bad("--exclude", fmt::format("{} has the slots {}; there is no {}", host.name,
                                              fmt::join(host.devices, ","), device));
        }
      }
      host.slots = static_cast<std::int64_t>(host.devices.size());
    }
    if (choice.devices.empty() || host.devices.empty()) {
      const std::string name = host.name;
      std::erase_if(list.hosts, [&name](const Host& other) { return other.name == name; });
    }
  }
  if (list.hosts.empty()) return bad("--exclude", "no host is left");
  return {};
}

}  // namespace ddprun::launcher
