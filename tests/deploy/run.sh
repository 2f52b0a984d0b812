#!/usr/bin/env bash
# Checks what is in deploy/ against the schemas of four versions of Kubernetes and of Kubeflow's kinds.
#   tests/deploy/run.sh
# The venv lies in ${XDG_CACHE_HOME:-$HOME/.cache}/ddprun-deploy-tests (220 MB). Where it cannot be made, everything is skipped
# and said so; under CI=true that is a failure. Last line: "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=${XDG_CACHE_HOME:-$HOME/.cache}/ddprun-deploy-tests
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
PATH=$venv/bin:$PATH exec "$venv/bin/python" -u tests/deploy/check_kubernetes.py
