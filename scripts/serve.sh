#!/usr/bin/env bash
# Sets up, builds and serves an OpenAI-compatible API on 127.0.0.1:8080 with the default model.
# Arguments go to `kvlink serve` (--model, --host, --port, --threads, --ctx, --kv-memory, ...).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh
build_release kvlink

# For the lines below and the default of --log-dir; `kvlink serve` reads the arguments itself.
host=127.0.0.1 port=8080 logs=.deps/logs previous=
defaults=(--log-dir "$logs")
for argument in "$@" ''; do
  case $previous in
    --host) host=$argument ;;
    --port) port=$argument ;;
    --log-dir) logs=$argument defaults=() ;;
  esac
  case $argument in
    --host=*) host=${argument#*=} ;;
    --port=*) port=${argument#*=} ;;
    --log-dir=*) logs=${argument#*=} defaults=() ;;
  esac
  previous=$argument
done
say "serving on http://$host:$port (stop with Ctrl-C); logs in $(realpath -m "$logs")"
say "to try it:"
cat <<TRY
  curl http://$host:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is a cache?"}], "max_tokens": 64}'
TRY
exec build/release/kvlink serve ${defaults[@]+"${defaults[@]}"} "$@"
