// Only in the library that a trainer loads: how it behaves comes from the environment, and what it saw is told at the
// end, with an exit code of its own.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/gpu/emulation/emulation.h"

namespace ddprun::emulated {
namespace {

struct Watch {
  Watch() {
    Conduct& conduct = emulated::conduct();  // made before this object, so it is still there in the destructor
    const char* order = std::getenv("EMULATED_STREAMS");
    if (order != nullptr && std::string(order) == "lazy") conduct.streams = Streams::lazy;
    if (const char* number = std::getenv("EMULATED_GPUS")) conduct.devices = std::atoi(number);
  }
  ~Watch() {
    for (const std::string& line : violations()) std::fprintf(stderr, "emulated GPU: %s\n", line.c_str());
    if (!violations().empty()) std::_Exit(99);
  }
} watch;

}  // namespace
}  // namespace ddprun::emulated
