#!/usr/bin/env bash
# Builds the Debian packages and has lintian look at them: an error fails.
#   deploy/package/deb.sh OUTPUT_FOLDER      DDPRUN_CUDA=ON for ddprun-cuda as well
set -euo pipefail
output=$(realpath -m "${1:?deb.sh: give the folder for the packages}")
cd "$(dirname "$0")/../.."

cmake --preset package "-DDDPRUN_CUDA=${DDPRUN_CUDA:-AUTO}"
cmake --build --preset package
mkdir -p "$output"
# dpkg-shlibdeps wants times and modes that do not depend on who builds.
(umask 022 && cpack --config build/package/CPackConfig.cmake -B "$output" >"$output/cpack.log") || { cat "$output/cpack.log" >&2; exit 1; }
rm -rf "$output/_CPack_Packages"
ls -l "$output"/*.deb
if command -v lintian >/dev/null; then
  lintian --no-tag-display-limit --fail-on error "$output"/*.deb
else
  echo "deb.sh: no lintian here: the packages were not looked at" >&2
fi
