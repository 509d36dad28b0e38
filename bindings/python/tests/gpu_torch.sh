#!/usr/bin/env bash
# flashwright.torch and flashwright.transformers on a GPU: tests, the grid of sizes, the host's time of a call, examples.
#
#   PYTHONPATH=build/python bindings/python/tests/gpu_torch.sh FOLDER
#
# The Python on the PATH has PyTorch with CUDA, transformers and pytest; the package is the one that PYTHONPATH names.
# Logs go to FOLDER. The last line says "all passed", or what failed; the exit status is 1 then.
set -uo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
tests=$root/bindings/python/tests
out=${1:?a folder for the logs}
mkdir -p "$out"
export PYTHONDONTWRITEBYTECODE=1 FLASHWRIGHT_DATA_DIR=:memory: FLASHWRIGHT_CACHE_DIR=$out/kernels
failed=()

run() {
  local name=$1
  shift
  echo "== $name"
  "$@" 2>&1 | tee "$out/$name.log" | tail -n 25 || failed+=("$name")
}

pytest=(python3 -m pytest -q -p no:cacheprovider --show-capture=no --device cuda)
run overhead python3 "$root/bench/gpu/overhead.py" --out "$out/overhead.json"
run torch "${pytest[@]}" "$tests/test_torch.py" "$tests/test_torch_sdpa.py"
run transformers "${pytest[@]}" "$tests/test_transformers.py"
run swap_transformers python3 "$root/examples/python/swap_transformers.py" --device cuda
run train_loop python3 "$root/examples/python/train_loop.py" --device cuda
run train_loop_compiled python3 "$root/examples/python/train_loop.py" --device cuda --compile
grid() {  # eight processes: most of the time is the computation in double precision, launch by launch
  local part pids=() status=0
  for part in 1 2 3 4 5 6 7 8; do
    python3 "$tests/torch_grid.py" --part $part/8 ${FW_GRID_COUNT:+--count "$FW_GRID_COUNT"} &
    pids+=($!)
  done
  for part in "${pids[@]}"; do wait "$part" || status=1; done
  return $status
}
run grid grid
rm -rf "$out/kernels"

if ((${#failed[@]})); then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all passed"
