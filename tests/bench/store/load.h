#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// The load half of store_bench: plain sockets and epoll, the same for every server.
namespace ddprun::bench {

struct Latency {
  double per_second = 0;  // round trips of all clients together
  double p50_us = 0;
  double p99_us = 0;
  double server_cpu_us = 0;  // of one round trip
};

// A connection that has said VALIDATE and PING. Exits the program with a message on failure: a bench has no other way.
int connect_store(std::uint16_t port);
void send_all(int fd, const std::string& bytes);
void receive_all(int fd, std::size_t size);

// Each of `clients` connections of one thread sends `request` and waits for its `reply_size` bytes, again and again.
// server_pid: whose CPU time is counted.
Latency round_trips(std::uint16_t port, int server_pid, int clients, const std::string& request, std::size_t reply_size,
                    double seconds);

struct Storm {
  double connect_s = 0;  // first connect to the last PING answered
  double barrier_s = 0;  // first BARRIER sent to the last answer
  int lost = 0;          // clients that were closed or not answered within the limit
};
// `clients` connections from `processes` processes, then one barrier over all of them on a fresh key.
Storm storm(std::uint16_t port, int clients, int processes, const std::string& key);

double now_s();
long rss_kib(int pid);
double cpu_s(int pid);  // of all threads of a process

}  // namespace ddprun::bench
