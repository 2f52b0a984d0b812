#include <fmt/format.h>

#include <boost/version.hpp>

#include "common/options.h"
#include "common/version_info.h"

namespace ddprun {

std::string version_text(std::string_view program) {
  const VersionInfo& info = version_info();
  return fmt::format(
      "{} {}\n"
      "commit:   {}\n"
      "compiler: {}\n"
      "Boost:    {}.{}.{}\n"
      "GPU:      {}\n",
      program, info.version, info.commit, info.compiler, BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
      BOOST_VERSION % 100, info.cuda);
}

}  // namespace ddprun
