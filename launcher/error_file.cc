#include "launcher/error_file.h"

#include <charconv>
#include <nlohmann/json.hpp>

namespace ddprun::launcher {
namespace {

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<std::chrono::seconds> time_of(const nlohmann::json& object) {
  const auto found = object.find("timestamp");
  if (found == object.end()) return std::nullopt;
  if (found->is_number()) {
    const auto value = found->get<double>();
    if (!(value >= 0 && value < 1e12)) return std::nullopt;  // no time, and perhaps no integer either
    return std::chrono::seconds(static_cast<std::int64_t>(value));
  }
  if (!found->is_string()) return std::nullopt;
  const auto text = found->get<std::string>();
  std::int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc()) return std::nullopt;
  return std::chrono::seconds(value);
}

}  // namespace

ErrorFile parse_error_file(const std::string& json) {
  ErrorFile file;
  if (json.empty()) return file;
  const auto root = nlohmann::json::parse(json, nullptr, false);
  if (!root.is_object()) return file;
  const auto message = root.find("message");
  if (message == root.end()) return file;
  if (message->is_string()) {
    file.message = message->get<std::string>();
    file.unix_time = time_of(root);
    return file;
  }
  if (!message->is_object()) return file;
  file.message = text_of(*message, "message");
  const auto extra = message->find("extraInfo");
  if (extra != message->end() && extra->is_object()) {
    file.callstack = text_of(*extra, "py_callstack");
    file.unix_time = time_of(*extra);
  }
  return file;
}

}  // namespace ddprun::launcher
