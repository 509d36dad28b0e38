#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in one go: the tests, the sanitizers, and the comparison.
#   [FW_FAMILY=sm90] bench/gpu/check.sh BUILD OUT [options of compare.py]
# BUILD holds lib/libflashwright.so and bin/fw_gpu_tests; OUT receives the logs and the tables. FW_FAMILY names the
# kernel family that is tested and compared; FW_COMPARE= leaves the comparison out.
set -uo pipefail
[ $# -ge 2 ] || { sed -n 2,5p "$0"; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
export LIBFLASHWRIGHT=$build/lib/libflashwright.so
if [ -n "${FW_FAMILY-}" ]; then export FLASHWRIGHT_FAMILY=$FW_FAMILY FW_GPU_FAMILY=$FW_FAMILY; fi
failed=()

step() {  # step NAME LOG COMMAND...: appends to LOG, remembers a failure
  local name=$1 log=$out/$2 start=$SECONDS
  shift 2
  echo "== $name" >>"$log"
  "$@" >>"$log" 2>&1 || failed+=("$name")
  echo "== $name: $((SECONDS - start)) s, last lines:"
  tail -n 4 "$log"
}

nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader | tee "$out/gpu-tests.log"
# A launch that kills the context is the last one named.
step tests gpu-tests.log env FW_GPU_PROGRESS=1 timeout 600 "$build/bin/fw_gpu_tests" --duration=true
python3 "$root/bench/gpu/every_lane_arrives.py" "$out/racecheck-templates"
for tool in memcheck racecheck synccheck initcheck; do
  templates=()
  if [ $tool = racecheck ]; then templates=("FLASHWRIGHT_TEMPLATE_DIR=$out/racecheck-templates"); fi
  step "$tool" gpu-sanitizers.log env FW_GPU_SMALL=1 "${templates[@]}" timeout 200 \
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/bin/fw_gpu_tests" --test-case-exclude="*2^31*,*65535*"
done
if [ -n "${FW_COMPARE-1}" ]; then
  step comparison compare.log timeout 500 python3 "$root/bench/gpu/compare.py" --out "$out/compare" "$@"
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all passed"
