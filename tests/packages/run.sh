#!/usr/bin/env bash
# Builds the wheel and the Debian packages and checks them as a user would get them: in a venv, in a bare Debian chroot.
#   tests/packages/run.sh [pattern ...]     a pattern is a part of "file.Class.test"; none = all
#   DDPRUN_BUILD_DIR   default: build/release
#   DDPRUN_PACKAGE_CUDA=ON   with the GPU backend (nvcc takes minutes)
# What was built lies in ${XDG_CACHE_HOME:-$HOME/.cache}/ddprun-packages until the sources change; so does the chroot.
# Last line: "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ddprun-packages
export DDPRUN_BUILD_DIR DDPRUN_PACKAGES DDPRUN_CHROOT DDPRUN_PACKAGE_TOOLS
DDPRUN_BUILD_DIR=$(realpath -m "${DDPRUN_BUILD_DIR:-build/release}")
DDPRUN_CHROOT=$cache/bookworm
DDPRUN_PACKAGE_TOOLS=$cache/tools
mkdir -p "$cache"
exec 9>"$cache/lock" # two runs at once must not fill one folder
flock -w 1800 9 || { echo "packages: another run has held $cache/lock for half an hour" >&2; exit 1; }

cuda=${DDPRUN_PACKAGE_CUDA:-OFF}
# Everything that the packages are made of, as it lies here.
sources=(CMakeLists.txt CMakePresets.json CHANGELOG.md LICENSE README.md pyproject.toml client cmake common deploy launcher rendezvous worker)
key=$({ echo "$cuda"; git log -1 --format=%H -- "${sources[@]}"; git diff HEAD -- "${sources[@]}"; git ls-files -o --exclude-standard -- "${sources[@]}" | xargs -r sha256sum; } | sha256sum | cut -c1-20)
DDPRUN_PACKAGES=$cache/$key

build() {
  find "$cache" -mindepth 1 -maxdepth 1 -type d -name '????????????????????' -exec rm -rf {} + # older ones
  rm -rf "$DDPRUN_PACKAGES.part" && mkdir -p "$DDPRUN_PACKAGES.part"
  if [ ! -x "$DDPRUN_PACKAGE_TOOLS/bin/auditwheel" ]; then
    python3 -m venv "$DDPRUN_PACKAGE_TOOLS" &&
      "$DDPRUN_PACKAGE_TOOLS/bin/pip" install --quiet --disable-pip-version-check -r tests/packages/requirements.txt || return 1
  fi
  # The flags and names of the other builds, so that ccache knows every file.
  echo "packages: the wheel"
  CC=cc CXX=c++ DDPRUN_WERROR=ON DDPRUN_CUDA=$cuda "$DDPRUN_PACKAGE_TOOLS/bin/python" -m build --no-isolation --wheel \
    -C wheel.tags=py3-none-manylinux_2_34_x86_64 --outdir "$DDPRUN_PACKAGES.part" . >"$cache/wheel.log" 2>&1 ||
    { tail -n 40 "$cache/wheel.log" >&2; return 1; }
  "$DDPRUN_PACKAGE_TOOLS/bin/python" -m build --no-isolation --sdist --outdir "$DDPRUN_PACKAGES.part" . >"$cache/sdist.log" 2>&1 ||
    { tail -n 40 "$cache/sdist.log" >&2; return 1; }
  echo "packages: the Debian packages"
  DDPRUN_CUDA=$cuda deploy/package/deb.sh "$DDPRUN_PACKAGES.part" >"$cache/deb.log" 2>&1 || { tail -n 40 "$cache/deb.log" >&2; return 1; }
  mv "$DDPRUN_PACKAGES.part" "$DDPRUN_PACKAGES"
}
if [ ! -d "$DDPRUN_PACKAGES" ] && ! build; then
  echo "packages: they could not be built; see above" >&2
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi

ln -sfn "$DDPRUN_PACKAGES" "$cache/latest"

# A bare Debian 12 with what the packages depend on. Without root or debootstrap its tests are skipped.
if [ "$(id -u)" = 0 ] && [ ! -d "$DDPRUN_CHROOT" ] && command -v debootstrap >/dev/null; then
  echo "packages: a Debian 12 in $DDPRUN_CHROOT"
  rm -rf "$DDPRUN_CHROOT.part"
  if debootstrap --variant=minbase --include=libdnnl2,libgomp1,python3-minimal bookworm "$DDPRUN_CHROOT.part" >"$cache/debootstrap.log" 2>&1; then
    mv "$DDPRUN_CHROOT.part" "$DDPRUN_CHROOT"
  else
    tail -n 10 "$cache/debootstrap.log" >&2
    rm -rf "$DDPRUN_CHROOT.part"
  fi
fi
exec python3 -u tests/packages/runner.py "$@"
