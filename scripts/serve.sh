#!/usr/bin/env bash
# Sets up, builds and serves an OpenAI-compatible API on 127.0.0.1:8080 with the default model.
# Arguments go to `kvlink serve` (--model, --host, --port, --threads, --ctx, --kv-memory, ...).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh
build_release kvlink

# For the lines below only; `kvlink serve` reads the arguments itself.
host=127.0.0.1 port=8080 previous=
for argument in "$@"; do
  case $previous in
    --host) host=$argument ;;
    --port) port=$argument ;;
  esac
  case $argument in
    --host=*) host=${argument#*=} ;;
    --port=*) port=${argument#*=} ;;
  esac
  previous=$argument
done
log=.deps/logs/serve.log
say "serving on http://$host:$port (stop with Ctrl-C); log: $root/$log"
say "try it, when it says that it is ready:"
cat <<TRY
  curl http://$host:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is a cache?"}], "max_tokens": 64}'
TRY
# tee ignores the interrupt, so that the last lines reach the log as well.
exec build/release/kvlink serve "$@" > >(tee -ia "$log") 2> >(tee -ia "$log" >&2)
