# shellcheck shell=bash
# run_ctest BUILD_DIR [ctest arguments]: runs the tests, prints failures and skipped ones, checks the skip list under
# CI=true, and closes with "N passed, N failed, N skipped". Returns 1 if anything failed. Source it.
run_ctest() {
  local dir=$1 out rc=0 passed failed skipped total
  shift
  out=$(mktemp)
  # A second try tells a broken test from a machine that was busy; both are said below.
  ctest --test-dir "$dir" --output-on-failure --no-tests=error --repeat until-pass:2 -j "${DDPRUN_TEST_JOBS:-2}" "$@" >"$out" 2>&1 || rc=$?
  grep -vE '^ +Start +[0-9]+:|Passed +[0-9.]+ sec$' "$out" || true
  # ctest counts skipped tests among the passed ones.
  total=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\2/p' "$out")
  failed=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1/p' "$out")
  grep -E '\*\*\*Skipped' "$out" | sed -E 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*/\1/' | sort -u >"$out.skipped" || true
  skipped=$(wc -l <"$out.skipped")
  if [ -z "$total" ]; then
    tail -n 20 "$out" >&2
    rm -f "$out" "$out.skipped"
    echo "0 passed, 1 failed, 0 skipped"
    return 1
  fi
  if [ "$skipped" -gt 0 ]; then
    echo "skipped:"
    sed 's/^/  /' "$out.skipped"
  fi
  if [ "${CI:-}" = true ] && [ $# -eq 0 ]; then
    # A test that ran here though it was expected to be skipped is no failure; one that went missing is.
    local name pattern unexpected=0
    while read -r name; do
      while read -r pattern; do
        # shellcheck disable=SC2254  # patterns on purpose
        case $name in $pattern) continue 2 ;; esac
      done < <(sed 's/ *#.*//; /^$/d' tests/expected_skips.txt)
      echo "skipped, but not listed in tests/expected_skips.txt: $name"
      unexpected=$((unexpected + 1))
    done <"$out.skipped"
    if [ "$unexpected" -gt 0 ]; then failed=$((failed + 1)) rc=1; fi
  fi
  passed=$((total - failed - skipped))
  [ "$passed" -ge 0 ] || passed=0
  rm -f "$out" "$out.skipped"
  [ "$failed" -eq 0 ] || rc=1
  echo "$passed passed, $failed failed, $skipped skipped"
  return $rc
}
