#!/usr/bin/env bash
# Builds the libFuzzer targets (preset `fuzz`, clang) and runs each on its committed seeds for DDPRUN_FUZZ_SECONDS
# (default 60).
#   tests/fuzz/run.sh [target ...]
# A finding is kept as build/fuzz/findings/TARGET/crash-*; add it to tests/fuzz/corpus/TARGET when it is mended.
# Last line: "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${DDPRUN_FUZZ_SECONDS:-60}

cmake --preset fuzz >/dev/null
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(sed -n 's/^ddprun_fuzz(\([a-z0-9_]*\).*/\1/p' tests/fuzz/CMakeLists.txt)
cmake --build --preset fuzz --target "${targets[@]}"

# Two at a time: as many as the smallest machine has cores.
passed=0 failed=0 names=() pids=()
collect() {
  local i
  for i in "${!pids[@]}"; do
    if wait "${pids[$i]}"; then
      passed=$((passed + 1))
      echo "${names[$i]}: ok, $(grep -oE 'stat::number_of_executed_units: +[0-9]+' "build/fuzz/${names[$i]}.log" | grep -oE '[0-9]+$' || echo '?') runs"
    else
      failed=$((failed + 1))
      echo "${names[$i]}: FAILED; input in build/fuzz/findings/${names[$i]}"
      tail -n 40 "build/fuzz/${names[$i]}.log"
    fi
  done
  names=() pids=()
}
for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/findings/$target" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target"
  # New inputs go to the first folder, which is not committed.
  "build/fuzz/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/$target/" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" \
    >"build/fuzz/$target.log" 2>&1 &
  names+=("$target") pids+=($!)
  [ ${#pids[@]} -lt 2 ] || collect
done
collect
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
