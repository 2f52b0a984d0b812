#!/usr/bin/env bash
# Checks what is in deploy/: the manifests against the schemas of four versions of Kubernetes and of Kubeflow's kinds, the
# pods and the pages' commands by running them with the programs of one build.
#   tests/deploy/run.sh [file ...]       default: all
#   DDPRUN_BUILD_DIR   default: build/release
# The venv lies in ${XDG_CACHE_HOME:-$HOME/.cache}/ddprun-deploy-tests (220 MB). Where it cannot be made, everything is skipped
# and said so; under CI=true that is a failure. Last line: "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=${XDG_CACHE_HOME:-$HOME/.cache}/ddprun-deploy-tests
export DDPRUN_BINARY_DIR
DDPRUN_BINARY_DIR=$(realpath -m "${DDPRUN_BUILD_DIR:-build/release}")
if [ ! -x "$DDPRUN_BINARY_DIR/ddprun" ]; then
  echo "deploy: $DDPRUN_BINARY_DIR/ddprun is missing: build first (cmake --build --preset release), or set DDPRUN_BUILD_DIR" >&2
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi
wanted=$(cat tests/deploy/requirements*.txt)

make_venv() {
  echo "deploy: installing the schemas into $venv"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv" || return 1
  local pip=("$venv/bin/pip" install --quiet --disable-pip-version-check --retries 3 --timeout 60)
  "${pip[@]}" -r tests/deploy/requirements.txt && "${pip[@]}" --no-deps -r tests/deploy/requirements-alone.txt &&
    printf '%s' "$wanted" >"$venv/wanted"
}

mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock" # two runs at once must not fill one venv
flock -w 600 9 || { echo "deploy: another run has held $venv.lock for ten minutes" >&2; exit 1; }
if [ "$(cat "$venv/wanted" 2>/dev/null)" != "$wanted" ] && ! make_venv; then
  if [ "${CI:-}" = true ]; then
    echo "deploy: the schemas could not be installed; see above" >&2
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
  fi
  echo "deploy: skipped, the schemas could not be installed (see above)"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
exec 9>&-

[ $# -gt 0 ] || set -- check_kubernetes.py pod_test.py podman_test.py readme_test.py
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for file in "$@"; do
  PATH=$venv/bin:$PATH "$venv/bin/python" -u "tests/deploy/$file" 2>&1 | tee "$log" | sed '/^[0-9]* passed, [0-9]* failed, [0-9]* skipped$/d' || true
  if ! read -r p _ f _ s _ < <(tail -n 1 "$log" | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' | tr -d ,); then
    echo "deploy: $file did not come to its end" >&2
    p=0 f=1 s=0
  fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
