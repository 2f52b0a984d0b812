#pragma once

#include <string_view>

namespace ddprun {

// What CMake knew when it configured this build (cmake/version.cmake).
struct VersionInfo {
  std::string_view version;   // "0.1.0"
  std::string_view commit;    // "a5104ee12345", "-dirty" behind it; "unknown" outside of a git checkout
  std::string_view compiler;  // "GNU 12.2.0, Release"
  std::string_view cuda;      // what was found, in words
};

const VersionInfo& version_info();

}  // namespace ddprun
