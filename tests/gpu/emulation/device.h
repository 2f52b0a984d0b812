#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/gpu/emulation/emulation.h"

// What the emulated libraries share: one device's memory and streams.
namespace ddprun::emulated {

struct Stream;
struct Event;

// Notes a call; returns the status that a test wants it to fail with, else 0. `creates`: not allowed inside a step.
int called(const std::string& call, void* stream, bool creates = false);
void violated(const std::string& what);
void count(const std::string& kind, int by);

Stream* create_stream();
void destroy_stream(Stream* stream);
Event* create_event();
void destroy_event(Event* event);
void record(Event* event, Stream* stream);
void wait(Stream* stream, Event* event);
bool happened(Event* event);  // lets some queued work run first
void drain(Stream* stream);
void drain_all();
// Queues work; it may touch device memory when it runs.
void enqueue(void* stream, std::function<void()> work);

void* allocate_device(std::size_t size_bytes);  // null: not enough
bool release_device(void* memory);
bool is_device(const void* memory);
std::size_t device_bytes_used();
void* allocate_pinned(std::size_t size_bytes);
bool release_pinned(void* memory);
// Whether [memory, memory + size) lies in one live piece of device memory; else notes a violation naming `what`.
bool reaches(const void* memory, std::size_t size_bytes, const std::string& what);
// While it lives, device memory can be touched.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

// Element i of memory whose type has these bytes: f32, bf16, f16.
enum class Type { f32, bf16, f16 };
double load(Type type, const void* memory, std::int64_t i);
void store(Type type, void* memory, std::int64_t i, double value);
std::size_t bytes_of(Type type);
const char* name_of(Type type);

}  // namespace ddprun::emulated
