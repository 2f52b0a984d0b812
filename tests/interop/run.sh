#!/usr/bin/env bash
# Runs the tests with the real PyTorch against the programs of one build.
#   tests/interop/run.sh [pattern ...]     a pattern is a part of "file.Class.test"; none = all
#   DDPRUN_BUILD_DIR   default: build/release
# The venv lies in ${XDG_CACHE_HOME:-$HOME/.cache}/ddprun-tests; it is made on the first run (5.4 GB) and used again
# after that. Where it cannot be made, everything is skipped and said so; under CI=true that is a failure.
# Last line: "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/../.."

build_dir=$(realpath -m "${DDPRUN_BUILD_DIR:-build/release}")
venv=${XDG_CACHE_HOME:-$HOME/.cache}/ddprun-tests
requirements=tests/interop/requirements.txt

if [ ! -x "$build_dir/ddprun" ]; then
  echo "interop: $build_dir/ddprun is missing: build first (cmake --build --preset release), or set DDPRUN_BUILD_DIR" >&2
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi

# Answers whether the venv has exactly the wanted versions, without importing anything heavy.
venv_is_complete() {
  [ -x "$venv/bin/python" ] && "$venv/bin/python" - "$requirements" <<'PY'
import importlib.metadata, sys
for line in open(sys.argv[1]):
    line = line.split("#")[0].strip()
    if not line:
        continue
    name, _, version = line.partition("==")
    try:
        if importlib.metadata.version(name).split("+")[0] != version:
            sys.exit(1)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(1)
PY
}

make_venv() {
  echo "interop: installing $(grep -v '^#' "$requirements" | tr '\n' ' ')into $venv"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv" || return 1
  "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 3 --timeout 60 -r "$requirements"
}

# promtool is in Debian's package prometheus, whose installation would start a service: only the file is taken.
fetch_promtool() (
  [ -x "$venv/bin/promtool" ] && exit 0
  echo "interop: fetching promtool into $venv/bin"
  folder=$(mktemp -d) && cd "$folder" || exit 1
  trap 'rm -rf "$folder"' EXIT
  apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; } || exit 1
  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && mv usr/bin/promtool "$venv/bin/promtool"
)

mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock" # two runs at once must not fill one venv
flock -w 1800 9 || { echo "interop: another run has held $venv.lock for half an hour" >&2; exit 1; }
if ! venv_is_complete && ! { make_venv && venv_is_complete; }; then
  if [ "${CI:-}" = true ]; then
    echo "interop: PyTorch could not be installed; see above" >&2
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
  fi
  count=$(find tests/interop -maxdepth 1 -name 'test_*.py' | wc -l)
  echo "interop: skipped, PyTorch could not be installed (see above); counted here: files"
  echo "0 passed, 0 failed, $count skipped"
  exit 0
fi
fetch_promtool || echo "interop: promtool could not be fetched: the metrics are not checked with it"
exec 9>&-

export DDPRUN_BUILD_DIR=$build_dir
exec "$venv/bin/python" -u tests/interop/runner.py "$@"
