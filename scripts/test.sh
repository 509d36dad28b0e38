#!/usr/bin/env bash
# Installs what is missing, builds everything with warnings as errors, and runs all tests but those labelled slow.
# Tests that lack what they need (a GPU, LLVM, NVRTC) are skipped, and named and counted at the end.
#
#   scripts/test.sh                     all tests but the slow ones, in build/
#   scripts/test.sh --slow              the slow ones too (hours)
#   scripts/test.sh --sanitize          with AddressSanitizer and UBSan, in build-sanitize/
#   scripts/test.sh --no-setup          installs nothing
#   scripts/test.sh -- -L cache         what follows -- goes to ctest
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
setup=true
options=(-DCMAKE_BUILD_TYPE=Release -DFLASHWRIGHT_TESTS=ON -DFLASHWRIGHT_WERROR=ON)
select=(-LE slow)
while (($#)); do
  case $1 in
    --slow) select=() ;;
    --sanitize)
      build=$root/build-sanitize
      options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DFLASHWRIGHT_TESTS=ON -DFLASHWRIGHT_SANITIZE=address,undefined)
      ;;
    --no-setup) setup=false ;;
    --)
      shift
      select+=("$@")
      break
      ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "test: unknown argument '$1'; see --help" >&2
      exit 2
      ;;
  esac
  shift
done

if $setup; then
  "$root/scripts/setup.sh" || echo "test: going on with what is there"
fi

# The Python package is built and tested where .venv has what it needs.
skipped=()
python=$root/.venv/bin/python
if [[ $build == *-sanitize ]]; then
  skipped+=("the Python package: the sanitizers would have to be in the interpreter as well")
elif [[ -x $python ]] && "$python" -c 'import nanobind, numpy, os, pytest, sysconfig
assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2> /dev/null; then
  options+=(-DFLASHWRIGHT_PYTHON=ON "-DPython_EXECUTABLE=$python")
else
  options+=(-DFLASHWRIGHT_PYTHON=OFF)
  skipped+=("the Python package: $python lacks nanobind, numpy, pytest or Python.h; scripts/setup.sh installs them")
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
configure() { cmake -S "$root" -B "$build" -G Ninja "${options[@]}" "$@" > "$log" 2>&1; }
if ! configure; then
  if grep -q 'The CPU backend needs LLVM' "$log" && configure -DFLASHWRIGHT_CPU=OFF; then
    skipped+=("the CPU backend and its tests: LLVM 16 or newer was not found")
  else
    cat "$log" >&2
    exit 1
  fi
fi
cmake --build "$build"

# A user's stores and settings must change no result.
unset "${!FLASHWRIGHT_@}"
code=0
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$(nproc)" "${select[@]}" || code=$?

mapfile -t found < <(sed -n 's/^[^a-z]*skipped: //p; s/.*MESSAGE: \([0-9]* goldens skipped: \)/\1/p' \
  "$build/Testing/Temporary/LastTest.log" | sort -u)
skipped+=("${found[@]}")
echo
echo "skipped: ${#skipped[@]}"
if ((${#skipped[@]})); then printf '  %s\n' "${skipped[@]}"; fi
exit "$code"
