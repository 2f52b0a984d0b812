#include "worker/report/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <chrono>

#include "common/log.h"
#include "common/system.h"
#include "worker/base/crc32c.h"

namespace ddprun::trainer {
namespace {

void append_fixed(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

// Protobuf wire types: 0 varint, 1 fixed 64, 2 length-delimited, 5 fixed 32.
void append_tag(std::string& out, int field, int wire_type) {
  append_varint(out, static_cast<std::uint64_t>(field << 3 | wire_type));
}
void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_tag(out, field, 2);
  append_varint(out, bytes.size());
  out.append(bytes);
}
void append_double(std::string& out, int field, double value) {
  append_tag(out, field, 1);
  append_fixed(out, std::bit_cast<std::uint64_t>(value), 8);
}
void append_integer(std::string& out, int field, std::int64_t value) {
  append_tag(out, field, 0);
  append_varint(out, static_cast<std::uint64_t>(value));
}

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string tfrecord(std::string_view data) {
  std::string out;
  append_fixed(out, data.size(), 8);
  append_fixed(out, masked_crc(std::string_view(out.data(), 8)), 4);
  out.append(data);
  append_fixed(out, masked_crc(data), 4);
  return out;
}

// Event: 1 wall_time (double), 2 step (int64), 3 file_version, 5 summary, 7 session_log.
// Summary: 1 repeated Value. Value: 1 tag, 2 simple_value (float).
std::string scalar_event(double wall_time_s, std::int64_t step, std::string_view tag, double value) {
  std::string one;
  append_bytes(one, 1, tag);
  append_tag(one, 2, 5);
  append_fixed(one, std::bit_cast<std::uint32_t>(static_cast<float>(value)), 4);
  std::string summary;
  append_bytes(summary, 1, one);
  std::string event;
  append_double(event, 1, wall_time_s);
  append_integer(event, 2, step);
  append_bytes(event, 5, summary);
  return event;
}

Result<TensorBoardWriter> TensorBoardWriter::open(const std::string& folder, std::int64_t start_step) {
  const double now = wall_time();
  const std::string path = fmt::format("{}/events.out.tfevents.{:.0f}.{}.{}", folder, now, host_name(), ::getpid());
  auto file = LineFile::open(path, -1);
  if (!file) return std::move(file).error();
  TensorBoardWriter writer(std::move(*file));
  std::string version;
  append_double(version, 1, now);
  append_bytes(version, 3, "brain.Event:2");
  std::string records = tfrecord(version);
  if (start_step > 0) {
    // SessionLog { status: START } at the first step that is written anew.
    std::string session;
    append_integer(session, 1, 1);
    std::string event;
    append_double(event, 1, now);
    append_integer(event, 2, start_step + 1);
    append_bytes(event, 7, session);
    records += tfrecord(event);
  }
  writer.write(records);
  return writer;
}

void TensorBoardWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  write(tfrecord(scalar_event(wall_time(), step, tag, value)));
}

void TensorBoardWriter::write(const std::string& records) {
  if (failed_) return;
  auto written = file_.append(records);
  if (written) return;
  log_warning("TensorBoard file given up: {}", written.error().message());
  failed_ = true;
}

}  // namespace ddprun::trainer
