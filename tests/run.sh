#!/usr/bin/env bash
# Installs what is missing, builds the release preset and passes the whole test suite.
#   tests/run.sh [ctest arguments, e.g. -R Membership or -L unit]
# Last line: "N passed, N failed, N skipped". Tests that were skipped are listed; under CI=true each must match a line of
# tests/expected_skips.txt, so that no test goes missing unnoticed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/support/ctest_summary.sh

deploy/install-dependencies.sh build data test
cuda=(); [ -z "${DDPRUN_CUDA:-}" ] || cuda=("-DDDPRUN_CUDA=$DDPRUN_CUDA")
cmake --preset release "${cuda[@]}"
cmake --build --preset release

run_ctest build/release "$@"
