#!/usr/bin/env bash
# Sets up, builds and serves an OpenAI-compatible API on 127.0.0.1:8080 with the default model.
# Arguments go to `kvlink serve` (--model, --host, --port, --threads, --ctx, --kv-memory, ...).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh
build_release kvlink

# The log goes to .deps/logs unless the arguments say otherwise. `kvlink serve` prints the address, a
# line to try it and where the log is.
defaults=(--log-dir .deps/logs)
[[ " $* " = *' --log-dir'[=\ ]* ]] && defaults=()
exec build/release/kvlink serve ${defaults[@]+"${defaults[@]}"} "$@"
