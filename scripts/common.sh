# Sourced by serve.sh and test.sh: set up, configure, build. Not a command.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
mkdir -p .deps/logs
name=$(basename "$0" .sh)

say() { printf '[%s] %s\n' "$name" "$*"; }
fail() {
  printf '[%s] error: %s\n' "$name" "$*" >&2
  exit 1
}

# Shows a build's progress: everything on a terminal (ninja keeps it to one line there), every
# twentieth step elsewhere. The whole output is in the log either way.
build_release() { # targets ...
  local log=.deps/logs/build.log started=$SECONDS
  cmake --preset release >"$log" 2>&1 || {
    tail -n 25 "$log" >&2
    fail "configuring failed; the whole output is in $log"
  }
  say "building (the first time takes minutes; later only what changed)"
  local command=(cmake --build --preset release)
  (($#)) && command+=(--target "$@")
  export NINJA_STATUS='[%f/%t %es] '
  if [[ -t 1 ]]; then
    "${command[@]}" || fail "the build failed"
  elif ! "${command[@]}" 2>&1 | tee -a "$log" | awk '/^\[[0-9]+\//{ if (n++ % 20 == 0) { print; fflush() } }'; then
    grep -A 25 -m 1 '^FAILED' "$log" >&2 || tail -n 25 "$log" >&2
    fail "the build failed; the whole output is in $log"
  fi
  say "built in $((SECONDS - started)) s"
}
