#!/usr/bin/env bash
# The emitted file is meant to be read: one file, no includes, and only what the case needs.
#
#   examples/read_the_kernel.sh [FOLDER for the files]
set -euo pipefail

flashwright=${FLASHWRIGHT:-flashwright}
folder=${1:-$(mktemp -d)}
config=(--dtype bf16 --head-dim 64 --target sm_80)

"$flashwright" emit "${config[@]}" --mask none -o "$folder/plain.cu"
"$flashwright" emit "${config[@]}" --mask causal -o "$folder/causal.cu"

echo
echo "== how it begins: what it is, how it is launched, how to get it again"
sed -n '1,8p' "$folder/causal.cu"
echo
echo "== its constants"
grep -E '^constexpr int k' "$folder/causal.cu"
echo
echo "== its functions, each below a comment that says why"
grep -E '^(__device__|extern)' "$folder/causal.cu" | sed 's/ *{.*//'
echo
echo "== what a causal mask adds to the text"
diff "$folder/plain.cu" "$folder/causal.cu" | grep '^>' || true
echo
echo "== what the compiler makes of it"
"$flashwright" compile "${config[@]}" --mask causal || echo "(no NVRTC here: the text is all there is)"
echo
echo "The files are in $folder"
