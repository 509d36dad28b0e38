#!/usr/bin/env bash
# Tuning for a GPU that is not in this machine, and taking the results to the one where it is.
#
#   examples/offline_tuning.sh [SECONDS for each kernel]
#
# Kernels are compiled and ranked by the model; the results are marked as predicted. On the machine with the
# GPU, `flashwright tune` measures and goes on from there. Needs NVRTC.
set -euo pipefail

flashwright=${FLASHWRIGHT:-flashwright}
seconds=${1:-10}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build_machine=(--cache-dir "$work/build/kernels" --data-dir "$work/build/tuning")
gpu_machine=(--cache-dir "$work/gpu/kernels" --data-dir "$work/gpu/tuning")

for mask in none causal; do
  echo "== head dim 64, mask $mask, for an H200"
  "$flashwright" tune --dtype bf16 --head-dim 64 --mask "$mask" --batch 4 --heads 16 --seq 4096 \
    --device h200 --budget "${seconds}s" "${build_machine[@]}"
done

echo "== taking kernels and decisions along in one file"
"$flashwright" cache export "$work/h200.jsonl" "${build_machine[@]}"

echo "== on the other machine"
"$flashwright" cache import "$work/h200.jsonl" "${gpu_machine[@]}"
# Where the H200 is, --device is not needed; here it says which sm_90a is meant.
"$flashwright" explain --dtype bf16 --head-dim 64 --mask causal --device h200 --batch 4 --heads 16 --seq 4096 \
  "${gpu_machine[@]}"
