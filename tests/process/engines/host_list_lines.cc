#include <iostream>
#include <string>

#include "common/slurm_list.h"

// Prints what `scontrol show hostnames LIST` prints, by our own hand.
int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto hosts = ddprun::expand_host_list(argv[1]);
  if (!hosts) {
    std::cerr << hosts.error().message() << "\n";
    return 1;
  }
  for (const std::string& host : *hosts) std::cout << host << "\n";
  return 0;
}
