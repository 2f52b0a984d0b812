#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <string>
#include <vector>

#include "worker/device/backend.h"

namespace ddprun::cuda {
namespace {

constexpr const char* kLibrary = "libddprun_cuda.so";

std::string program_directory() {
  std::array<char, PATH_MAX> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) return "";
  std::string text(path.data(), static_cast<std::size_t>(size));
  return text.substr(0, text.rfind('/'));
}

Result<DeviceBackend*> load() {
  const std::string directory = program_directory();
  std::string reasons;
  for (const std::string& path :
       std::vector<std::string>{directory + "/" + kLibrary, directory + "/../lib/" + kLibrary, kLibrary}) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = ::dlerror();
      // A library that is there but does not load is the reason to tell; "no such file" thrice helps nobody.
      if (path.find('/') == std::string::npos || ::access(path.c_str(), F_OK) == 0) {
        reasons += reasons.empty() ? "" : "; ";
        reasons += reason != nullptr ? reason : path;
      }
      continue;
    }
    using Entry = DeviceBackend* (*)();
    const auto entry = reinterpret_cast<Entry>(::dlsym(library, "ddprun_cuda_backend_v3"));
    if (entry == nullptr) {
      reasons += (reasons.empty() ? "" : "; ") + path + " is of another version of ddprun";
      ::dlclose(library);
      continue;
    }
    return entry();
  }
  return Error(Errc::not_found,
               std::string("the CUDA backend did not load (looked beside the program, in ../lib and in "
                           "the loader's path): ") +
                   reasons + "; build with -DDDPRUN_CUDA=ON, or set ddp.backend: cpu");
}

}  // namespace

Result<DeviceBackend*> load_backend() {
  static const Result<DeviceBackend*> backend = load();
  return backend;
}

}  // namespace ddprun::cuda
