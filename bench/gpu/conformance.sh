#!/usr/bin/env bash
# What every wrapper of templates/ptx/ does on an NVIDIA GPU, as golden data for the tests of the emulator.
#   bench/gpu/conformance.sh BUILD OUT
# BUILD holds bin/fw_conformance, and in lib/ what the system lacks of its libraries; OUT receives the golden files,
# for tests/conformance/golden, and the log.
set -uo pipefail
[ $# -eq 2 ] || { sed -n 2,5p "$0"; exit 2; }
build=$(cd "$1" && pwd)
mkdir -p "$2/golden"
out=$(cd "$2" && pwd)
log=$out/conformance.log
program=$build/bin/fw_conformance
export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=()

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$log"
# A kernel that fails takes the device away from those behind it, and one that hangs keeps it: the rest runs again
# without it. It is the last one in progress.log.
skip=()
while true; do
  timeout 60 "$program" --device --out "$out/golden" "${skip[@]}" >"$out/device.log" 2>"$out/progress.log"
  status=$?
  cat "$out/device.log" >>"$log"
  last=$(grep -E '^[a-z]+/[a-z0-9_]+$' "$out/progress.log" | tail -n 1)
  if [ $status -eq 124 ] || grep -q "failed on the device" "$out/device.log"; then
    failed+=("$last")
    skip+=(--skip "$last")
  else
    [ $status -eq 0 ] || failed+=(device)
    break
  fi
done
if [ -n "$(command -v g++ clang++)" ]; then
  timeout 300 "$program" --compare "$out/golden" >>"$log" 2>&1 || failed+=(emulator)
else
  echo "the emulator was not compared: no g++ or clang++" >>"$log"
fi
cat "$log"
if [ ${#failed[@]} -gt 0 ]; then
  tail -n 2 "$out/progress.log"
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all passed; golden files are in $out/golden"
