#include "launcher/output/error_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 16;
constexpr int kMaxValues = 4096;

// Picks the few texts out while the parser goes through; keeps nothing else.
class Picker final : public nlohmann::json_sax<Json> {
 public:
  ErrorFile take() {
    file_.unix_time = plain_ ? top_time_ : extra_time_;
    return std::move(file_);
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return time(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return time(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return time(value); }
  bool binary(binary_t&) override { return true; }
  bool string(string_t& value) override {
    if (at({"message"})) {
      plain_ = true;
      file_.message = std::move(value);
    } else if (at({"message", "message"})) {
      plain_ = false;
      file_.message = std::move(value);
    } else if (at({"message", "extraInfo", "py_callstack"})) {
      file_.callstack = std::move(value);
    } else {
      std::int64_t seconds = 0;
      const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), seconds);
      if (ec == std::errc()) time(static_cast<double>(seconds));
    }
    return true;
  }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ <= static_cast<int>(keys_.size())) keys_[static_cast<std::size_t>(depth_ - 1)] = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool open() {
    if (++depth_ > kMaxDepth) return false;
    if (depth_ <= static_cast<int>(keys_.size())) keys_[static_cast<std::size_t>(depth_ - 1)].clear();
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  bool at(std::initializer_list<const char*> path) const {
    return depth_ == static_cast<int>(path.size()) && std::equal(path.begin(), path.end(), keys_.begin());
  }
  bool time(double seconds) {
    if (!(seconds >= 0 && seconds < 1e12)) return true;  // no time, and perhaps no integer either
    const std::chrono::seconds value(static_cast<std::int64_t>(seconds));
    if (at({"timestamp"})) top_time_ = value;
    if (at({"message", "extraInfo", "timestamp"})) extra_time_ = value;
    return true;
  }

  ErrorFile file_;
  bool plain_ = false;
  std::optional<std::chrono::seconds> top_time_, extra_time_;
  std::array<std::string, 3> keys_;  // of the open objects, outermost first
  int depth_ = 0;
};

}  // namespace

ErrorFile parse_error_file(const std::string& json) {
  Picker picker;
  Json::sax_parse(json, &picker);
  return picker.take();
}

std::string fit_error_file(std::string json) {
  const Json value = error_file_value(json);
  const bool whole = json.size() <= kMaxErrorFileBytes && value.is_object() && value.contains("message");
  if (whole) return json;
  ErrorFile file = parse_error_file(json);
  if (file.message.empty()) return json.size() <= kMaxErrorFileBytes ? json : "";
  constexpr std::size_t kMessage = 8 << 10, kStack = 12 << 10;
  if (file.message.size() > kMessage) file.message.resize(kMessage);
  if (file.callstack.size() > kStack) file.callstack.erase(0, file.callstack.size() - kStack);
  Json extra = Json::object();
  if (!file.callstack.empty()) extra["py_callstack"] = file.callstack;
  if (file.unix_time) extra["timestamp"] = std::to_string(file.unix_time->count());
  const Json out = {{"message", {{"message", file.message}, {"extraInfo", extra}}}};
  std::string text = out.dump(-1, ' ', false, Json::error_handler_t::replace);
  // Control characters grow sixfold.
  return text.size() <= kMaxErrorFileBytes ? text : "";
}

std::string read_error_file(const std::string& path) {
  constexpr std::size_t kMaxBytes = 4 << 20;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text;
  if (!fd) return text;
  char buffer[16 * 1024];
  while (text.size() < kMaxBytes) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  return fit_error_file(std::move(text));
}

Json error_file_value(const std::string& json) {
  int values = 0;
  auto value = Json::parse(
      json,
      [&values](int depth, Json::parse_event_t event, Json&) {
        const bool begins = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start ||
                            event == Json::parse_event_t::value;
        return depth <= kMaxDepth && (!begins || ++values <= kMaxValues);
      },
      false);
  return value.is_discarded() ? Json() : value;
}

}  // namespace ddprun::launcher
