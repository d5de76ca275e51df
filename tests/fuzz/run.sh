#!/usr/bin/env bash
# Runs one fuzz target on libFuzzer, with the sanitizers, on one core.
#
#   tests/fuzz/run.sh TARGET [SECONDS]      # http_request, json_request, gguf_header, block_codec,
#                                           # redis_reply or cache_operations; 600 seconds
#
# Starts from the committed corpus and what earlier runs found (build/fuzz/found/TARGET). An input
# that crashes, hangs or leaks is kept in build/fuzz/crashes/TARGET, and the run fails: mend the
# defect and put the input into tests/fuzz/corpus/TARGET, where the tests replay it from then on.
# Needs the set-up with --tools. NO_BUILD=1 takes the target as it lies there.
set -euo pipefail
target=${1:?usage: tests/fuzz/run.sh TARGET [SECONDS]}
seconds=${2:-600}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
corpus=tests/fuzz/corpus/$target
[[ -d $corpus ]] || { echo "there is no fuzz target '$target' ($corpus)" >&2; exit 2; }
build=build/fuzz
if [[ -z ${NO_BUILD:-} ]]; then
  if [[ $target = gguf_header && ! -e build/release/libllama-common.so ]]; then
    cmake --preset release
    cmake --build --preset release --target llama-common
  fi
  cmake --preset fuzz
  cmake --build --preset fuzz --target "${target}_fuzz"
fi
found=$build/found/$target crashes=$build/crashes/$target
mkdir -p "$found" "$crashes"
options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1
         -artifact_prefix="$crashes/")
case $target in
  cache_operations) options+=(-max_len=4096) ;;
  *) options+=(-max_len=16384) ;;
esac
[[ ! -e tests/fuzz/$target.dict ]] || options+=(-dict="tests/fuzz/$target.dict")
export ASAN_SYMBOLIZER_PATH=${ASAN_SYMBOLIZER_PATH:-/usr/bin/llvm-symbolizer-16}
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export LD_LIBRARY_PATH=$PWD/build/release${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$build/${target}_fuzz" "${options[@]}" "$found" "$corpus"
