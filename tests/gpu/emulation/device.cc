#include "tests/gpu/emulation/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "worker/tensor/half.h"

namespace ddprun::emulated {

struct Stream {
  std::string name;
  std::deque<std::function<void()>> queue;
  std::uint64_t queued = 0, done = 0;
  bool running = false;
};
struct Event {
  Stream* stream = nullptr;
  std::uint64_t at = 0;
};

namespace {

constexpr std::size_t kArena = std::size_t{256} << 20;
constexpr std::size_t kAlignment = 256;  // cudaMalloc's
constexpr std::size_t kGuard = 256;      // beside every piece, filled with kGuardByte
constexpr unsigned char kGuardByte = 0xA5;

struct State {
  Conduct conduct;
  std::vector<std::string> calls, violations, descriptors;
  struct Failure {
    int status, after;
  };
  std::map<std::string, Failure> failures;
  std::map<std::string, int> alive;
  std::vector<Stream*> streams;
  char* arena = nullptr;
  std::map<std::size_t, std::size_t> pieces;  // offset -> bytes, by place
  std::size_t used = 0;
  std::set<void*> pinned;
  int access = 0;     // nested
  bool open = false;  // device memory is mapped
};

State& state() {
  static State s;
  return s;
}

char* arena() {
  State& s = state();
  if (s.arena == nullptr) {
    void* memory = ::mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    s.arena = static_cast<char*>(memory);
  }
  return s.arena;
}

std::size_t padded(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment + kGuard; }

bool step(Stream& stream) {
  if (stream.queue.empty() || state().conduct.stuck) return false;
  auto work = std::move(stream.queue.front());
  stream.queue.pop_front();
  Access access;
  work();
  ++stream.done;
  return true;
}

void run_until(Stream& stream, std::uint64_t at) {
  while (stream.done < at && step(stream)) {
  }
}

const char* name_of(void* stream) {
  for (Stream* s : state().streams) {
    if (s == stream) return s->name.c_str();
  }
  return stream == nullptr ? "default stream" : "dead stream";
}

}  // namespace

Conduct& conduct() { return state().conduct; }
std::vector<std::string>& calls() { return state().calls; }
std::vector<std::string>& violations() { return state().violations; }
std::vector<std::string>& descriptors() { return state().descriptors; }
void fail(const std::string& call, int status, int after) { state().failures[call] = {status, after}; }

std::vector<std::string> alive() {
  std::vector<std::string> lines;
  for (const auto& [kind, number] : state().alive) {
    if (number != 0) lines.push_back(kind + ": " + std::to_string(number));
  }
  return lines;
}

int called(const std::string& call, void* stream, bool creates) {
  State& s = state();
  if (call != "cudaGetLastError" && call != "cudaEventQuery")
    s.calls.push_back(stream != nullptr ? call + " " + name_of(stream) : call);
  if (creates && s.conduct.in_step) violated(call + " inside a step");
  static const std::set<std::string> kWaitForTheDevice = {"cudaFree", "cudaFreeHost", "cublasDestroy",
                                                          "cublasLtDestroy", "cudnnDestroy"};
  if (s.conduct.stuck && kWaitForTheDevice.contains(call)) violated(call + " would wait for a device that hangs");
  if (stream != nullptr && std::find(s.streams.begin(), s.streams.end(), stream) == s.streams.end()) {
    violated(call + " on a stream that does not exist");
  }
  const auto found = s.failures.find(call);
  if (found == s.failures.end() || found->second.after-- > 0) return 0;
  const int status = found->second.status;
  s.failures.erase(found);
  return status;
}

void violated(const std::string& what) { state().violations.push_back(what); }
void count(const std::string& kind, int by) { state().alive[kind] += by; }

void replace_device() {
  State& s = state();
  for (Stream* stream : s.streams) delete stream;
  s.streams.clear();
  for (void* memory : s.pinned) std::free(memory);
  s.pinned.clear();
  s.pieces.clear();
  s.used = 0;
  s.alive.clear();
  s.conduct.stuck = false;
}

Stream* create_stream() {
  static constexpr const char* kNames[] = {"compute", "copy", "communication"};
  State& s = state();
  auto* stream = new Stream;
  stream->name = s.streams.size() < 3 ? kNames[s.streams.size()] : "another stream";
  s.streams.push_back(stream);
  count("stream", 1);
  return stream;
}

void destroy_stream(Stream* stream) {
  drain(stream);
  State& s = state();
  s.streams.erase(std::remove(s.streams.begin(), s.streams.end(), stream), s.streams.end());
  count("stream", -1);
  delete stream;
}

Event* create_event() {
  count("event", 1);
  return new Event;
}
void destroy_event(Event* event) {
  count("event", -1);
  delete event;
}
void record(Event* event, Stream* stream) {
  event->stream = stream;
  event->at = stream->queued;
}
void wait(Stream* stream, Event* event) {
  if (event->stream == nullptr) return;  // never recorded: CUDA does not wait either
  enqueue(stream, [on = event->stream, at = event->at] { run_until(*on, at); });
}
bool happened(Event* event) {
  if (event->stream == nullptr || event->stream->done >= event->at) return true;
  step(*event->stream);
  return event->stream->done >= event->at;
}
void drain(Stream* stream) { run_until(*stream, stream->queued); }
void drain_all() {
  for (Stream* stream : state().streams) drain(stream);
}

void enqueue(void* where, std::function<void()> work) {
  auto* stream = static_cast<Stream*>(where);
  if (stream == nullptr) {
    violated("work on the default stream");
    return;
  }
  stream->queue.push_back(std::move(work));
  ++stream->queued;
  if (state().conduct.streams == Streams::eager) drain(stream);
}

void* allocate_device(std::size_t size) {
  State& s = state();
  const std::size_t need = padded(size);
  if (s.used + need > std::min(kArena, s.conduct.device_bytes)) return nullptr;
  std::size_t at = 0;  // first fit
  for (const auto& [offset, bytes] : s.pieces) {
    if (offset - at >= need) break;
    at = offset + padded(bytes);
  }
  if (at + need > kArena) return nullptr;
  s.pieces[at] = size;
  s.used += need;
  char* memory = arena() + at;
  const Access access;
  std::memset(memory, 0xFF, size);  // nan in every type: memory that nobody wrote shows
  std::memset(memory + size, kGuardByte, need - size);
  count("device memory", 1);
  return memory;
}

bool release_device(void* memory) {
  if (memory == nullptr) return true;
  State& s = state();
  const auto found = s.pieces.find(static_cast<std::size_t>(static_cast<char*>(memory) - arena()));
  if (found == s.pieces.end()) {
    violated("memory was freed that is not allocated");
    return false;
  }
  drain_all();  // as cudaFree does
  {
    const Access access;
    const auto* bytes = static_cast<const unsigned char*>(memory);
    for (std::size_t i = found->second; i < padded(found->second); ++i) {
      if (bytes[i] == kGuardByte) continue;
      violated("a write " + std::to_string(i - found->second) + " bytes behind a piece of device memory of " +
               std::to_string(found->second) + " bytes");
      break;
    }
  }
  s.used -= padded(found->second);
  s.pieces.erase(found);
  count("device memory", -1);
  return true;
}

bool is_device(const void* memory) {
  const char* p = static_cast<const char*>(memory);
  return p >= arena() && p < arena() + kArena;
}
std::size_t device_bytes_used() { return state().used; }

void* allocate_pinned(std::size_t size) {
  void* memory = std::malloc(std::max<std::size_t>(size, 1));
  state().pinned.insert(memory);
  count("page-locked memory", 1);
  return memory;
}
bool release_pinned(void* memory) {
  if (state().pinned.erase(memory) == 0) return false;
  drain_all();
  std::free(memory);
  count("page-locked memory", -1);
  return true;
}

bool reaches(const void* memory, std::size_t size, const std::string& what) {
  State& s = state();
  if (size == 0) return true;
  if (is_device(memory)) {
    const auto offset = static_cast<std::size_t>(static_cast<const char*>(memory) - arena());
    auto after = s.pieces.upper_bound(offset);
    if (after != s.pieces.begin()) {
      --after;
      if (offset + size <= after->first + after->second) return true;
    }
  }
  violated(what + ": " + std::to_string(size) + " bytes reach outside of live device memory");
  return false;
}

Access::Access() {
  State& s = state();
  if (s.access++ > 0 || s.open) return;
  if (::mprotect(arena(), kArena, PROT_READ | PROT_WRITE) != 0) std::abort();
  s.open = true;
}
Access::~Access() {
  State& s = state();
  if (--s.access > 0 || !s.conduct.guarded) return;
  if (::mprotect(arena(), kArena, PROT_NONE) != 0) std::abort();
  s.open = false;
}

std::size_t bytes_of(Type type) { return type == Type::f32 ? 4 : 2; }
const char* name_of(Type type) { return type == Type::f32 ? "f32" : type == Type::bf16 ? "bf16" : "f16"; }

double load(Type type, const void* memory, std::int64_t i) {
  if (type == Type::f32) return static_cast<double>(static_cast<const float*>(memory)[i]);
  const std::uint16_t bits = static_cast<const std::uint16_t*>(memory)[i];
  return static_cast<double>(type == Type::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
}
void store(Type type, void* memory, std::int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  if (type == Type::f32) {
    static_cast<float*>(memory)[i] = narrow;
  } else {
    static_cast<std::uint16_t*>(memory)[i] = type == Type::bf16 ? f32_to_bf16(narrow) : f32_to_f16(narrow);
  }
}

}  // namespace ddprun::emulated
