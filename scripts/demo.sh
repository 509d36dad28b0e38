#!/usr/bin/env bash
# The main job from nothing: installs what is missing, builds, tunes a kernel for one attention layer of a real
# language model on the best device present, runs it, checks it against float64, compares it with the unfused
# computation, and shows that a second run is served from the store. Then the same kernel as CUDA text.
#
#   scripts/demo.sh                 stores are kept in build/demo-store, so a second demo shows the warm case
#   scripts/demo.sh --cold          empties them first
#   scripts/demo.sh --budget 30s    time for tuning (default 15s)
#   scripts/demo.sh --no-setup      installs nothing
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
store=$build/demo-store
data=$root/examples/data/minilm
budget=15s
setup=true
while (($#)); do
  case $1 in
    --cold) rm -rf "$store" ;;
    --budget)
      budget=${2:?"--budget needs a time, e.g. 30s"}
      shift
      ;;
    --no-setup) setup=false ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "demo: unknown argument '$1'; see --help" >&2
      exit 2
      ;;
  esac
  shift
done

title() { printf '\n==== %s\n\n' "$*"; }
skipped=()
skip() {
  printf 'skipped: %s\n' "$*"
  skipped+=("$*")
}

# ---- Setup and build ------------------------------------------------------------------------------

if $setup; then
  title "What a build needs"
  "$root/scripts/setup.sh" --no-python || echo "demo: going on with what is there"
fi

title "Build"
configure() { cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" > "$log" 2>&1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
options=()
# Tests need libraries of their own; the demo is about the product.
[[ -e $build/CMakeCache.txt ]] || options+=(-DFLASHWRIGHT_TESTS=OFF)
if ! configure "${options[@]}"; then
  if grep -q 'The CPU backend needs LLVM' "$log" && configure "${options[@]}" -DFLASHWRIGHT_CPU=OFF; then
    skip "the CPU backend: LLVM 16 or newer was not found"
  else
    cat "$log" >&2
    exit 1
  fi
fi
cmake --build "$build" --target flashwright_cli

cli=$build/bin/flashwright
export FLASHWRIGHT_CACHE_DIR=$store/kernels FLASHWRIGHT_DATA_DIR=$store/tuning

# value NAME [N]: the N-th field of that name in a JSON document on standard input, which has one on each line.
value() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" | sed -n "${2:-1}p"; }
ms() { awk "BEGIN { printf \"%.2f ms\", $1 / 1000 }"; }

title "This machine"
"$cli" doctor | sed '/^Environment/,$d'
target=$("$cli" doctor --json | value target)

# ---- The main job ---------------------------------------------------------------------------------

# The arrays are fp32. Where no kernel family has that, they are converted.
dtype=fp32
"$cli" supports --dtype fp32 --head-dim 32 ${target:+--target "$target"} > "$log" || dtype=bf16
config=(--dtype "$dtype" --head-dim 32)
shape=(--batch 2 --heads 12 --seq 480)
arrays=(--q "$data/q.npy" --k "$data/k.npy" --v "$data/v.npy")
summary=()

if [[ -z $target ]]; then
  skip "tuning and running: neither a GPU nor the CPU plugin (LLVM) is here"
else
  if [[ $target == cpu* ]]; then target=cpu; else target=cuda; fi
  config+=(--target "$target")
  title "First contact: one attention layer over a page of a book"
  "$cli" run "${arrays[@]}" "${config[@]}" --json > "$build/demo-first.json"
  from="the compiler"
  [[ $(value from_store < "$build/demo-first.json") == true ]] && from="the store"
  first_ms=$(ms "$(value get_kernel_us < "$build/demo-first.json")")
  echo "The kernel came from $from in $first_ms."

  title "Tune: tiles against the on-chip memory of this device, for $budget"
  "$cli" tune "${config[@]}" "${shape[@]}" --budget "$budget"

  title "Run and check against the float64 reference"
  "$cli" run "${arrays[@]}" "${config[@]}" -o "$build/demo-o.npy" --lse "$build/demo-lse.npy" --check --repeat 20

  title "Compare with the unfused computation"
  "$cli" bench "${config[@]}" "${shape[@]}" --against unfused
  echo
  "$cli" bench "${config[@]}" --batch 1 --heads 8 --seq 2048 --against unfused

  title "Once more, in a new process: served from the store"
  "$cli" run "${arrays[@]}" "${config[@]}" --effort cached
  again_ms=$(ms "$("$cli" run "${arrays[@]}" "${config[@]}" --effort cached --json | value get_kernel_us)")
  summary+=("first kernel: from $from in $first_ms"
    "in a new process: from the store in $again_ms, with the schedule that won"
    "results: within tolerance of float64")
fi

# ---- The same kernel for GPUs that need not be here -----------------------------------------------

for arch in sm_80 sm_90a; do
  title "The CUDA kernel of the same layer, in bf16, for $arch"
  cuda=(--dtype bf16 --head-dim 32 --target "$arch")
  "$cli" emit "${cuda[@]}" -o "$build/demo-$arch.cu"
  sed -n '1,3p' "$build/demo-$arch.cu"
  echo
  code=0
  "$cli" compile "${cuda[@]}" -o "$build/demo-$arch.cubin" || code=$?
  if ((code == 0)); then
    summary+=("CUDA kernel for $arch: build/demo-$arch.cu, compiled")
  elif ((code == 6)); then # what is missing was said on standard error
    skip "compiling for $arch: NVRTC was not found; scripts/setup.sh installs its pip wheel"
    summary+=("CUDA kernel for $arch: build/demo-$arch.cu")
  else
    exit "$code"
  fi
done

title "Summary"
printf '  %s\n' "${summary[@]}"
if ((${#skipped[@]})); then printf '  skipped: %s\n' "${skipped[@]}"; fi
echo "  stores: build/demo-store (scripts/demo.sh --cold empties them)"
