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
# A kernel that hangs is the last one in progress.log; the groups before it are written.
timeout 300 "$program" --device --out "$out/golden" >>"$log" 2>"$out/progress.log" || failed+=(device)
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
