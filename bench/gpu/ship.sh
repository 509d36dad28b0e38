#!/bin/sh
# Makes a file of share/tuned/ from what a tuning run has learned: the winners of one device, as the library ships
# them. RESULTS is an export of a tuning store (compare.py writes NAME.store.jsonl), as it is or compressed by gzip;
# DEVICE is what --device takes. Then build, and run the tests `generator` and `compile`.
#   bench/gpu/ship.sh BUILD RESULTS DEVICE FILE
#   bench/gpu/ship.sh build bench/results/h200/sm90-forward.store.jsonl h200 share/tuned/nvidia-h200.jsonl
set -eu
if [ $# -ne 4 ]; then
  sed -n 's/^#   /usage: /p' "$0" >&2
  exit 2
fi
flashwright=$1/bin/flashwright
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
zcat -f "$2" > "$folder/results.jsonl"
"$flashwright" cache import --data-dir "$folder" --cache-dir "$folder" "$folder/results.jsonl"
"$flashwright" cache export --decisions --device "$3" --data-dir "$folder" --cache-dir "$folder" "$4"
