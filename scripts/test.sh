#!/usr/bin/env bash
# Sets up, builds and runs all tests: unit, arch, integration, end to end, and the core under
# sanitizers. The last line counts them.
#
#   scripts/test.sh             everything but the heavy suites
#   scripts/test.sh --heavy     the heavy suites as well (fetches another model, 240 MB)
#   scripts/test.sh -R pool     other arguments go to ctest
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

select=(-LE '^heavy$')
models=()
if [[ ${1:-} = --heavy ]]; then
  select=()
  models=(--gemma --heavy)
  shift
fi
scripts/setup.sh ${models[@]+"${models[@]}"}
build_release

say "testing"
# ctest's counting line comes before its list of failures and times; hold it back to be the last.
status=0
ctest --preset release --parallel "$(nproc)" ${select[@]+"${select[@]}"} "$@" 2>&1 |
  awk '/tests passed, [0-9]+ tests failed out of [0-9]+/ { count = $0; next }
       { print; fflush() }
       END { if (count) print count; else print "no test ran" }' || status=$?
exit "$status"
