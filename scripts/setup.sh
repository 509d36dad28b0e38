#!/usr/bin/env bash
# Installs what building flashwright needs on Debian 12, Ubuntu 24.04 or a newer one: build tools,
# LLVM for the CPU plugin, the libraries, and NVRTC where no CUDA toolkit brings it. Whatever is
# already there is left alone, so a second run takes about a second and needs neither root nor a network.
#
#   scripts/setup.sh              install what is missing (as root, or through sudo)
#   scripts/setup.sh --check      only say what is missing; exit status 1 if anything is
#   scripts/setup.sh --no-nvrtc   leave NVRTC out
#   scripts/setup.sh --no-python  leave out what building and testing the Python package needs (with jax 600 MB)
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
llvm_versions=(19 20 18 17 16) # first choice first; 19 is the one the tests are run with

say() { printf 'setup: %s\n' "$*"; }
warn() { printf 'setup: %s\n' "$*" >&2; }

check_only=false
want_nvrtc=true
want_python=true
for argument in "$@"; do
  case $argument in
    --check) check_only=true ;;
    --no-nvrtc) want_nvrtc=false ;;
    --no-python) want_python=false ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      warn "unknown argument '$argument'; see --help"
      exit 2
      ;;
  esac
done

# ---- What is there already ------------------------------------------------------------------------

have() { command -v "$1" > /dev/null 2>&1; }

package_installed() {
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null) == installed ]]
}

# at_least 3.25.1 3.24
at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]; }

have_cmake() {
  have cmake && at_least "$(cmake --version | sed -n '1s/^cmake version //p')" 3.24
}

# A compiler with the parts of C++20 that older ones lack.
have_compiler() {
  local compiler
  for compiler in "${CXX:-}" g++ c++; do
    if [[ -n $compiler ]] && have "$compiler" &&
      printf '#include <compare>\n#include <source_location>\n#include <thread>\nstd::jthread t;\n' |
      "$compiler" -std=c++20 -x c++ -fsyntax-only - > /dev/null 2>&1; then
      return 0
    fi
  done
  return 1
}

# Prints the version of the LLVM development files that CMake will find.
find_llvm() {
  local version
  if [[ -n ${LLVM_DIR:-} && -e $LLVM_DIR/LLVMConfig.cmake ]]; then
    echo "of LLVM_DIR"
    return 0
  fi
  for version in "${llvm_versions[@]}"; do
    if [[ -e /usr/lib/llvm-$version/lib/cmake/llvm/LLVMConfig.cmake ]]; then
      echo "$version"
      return 0
    fi
  done
  return 1
}

# Prints the path of an NVRTC library, from the places where the library searches (runtime/library_search).
find_nvrtc() {
  local place file
  if [[ -n ${FLASHWRIGHT_NVRTC:-} && -e $FLASHWRIGHT_NVRTC ]]; then
    echo "$FLASHWRIGHT_NVRTC"
    return 0
  fi
  for place in "$venv"/lib/python3*/site-packages/nvidia/*/lib "${CONDA_PREFIX:+$CONDA_PREFIX/lib}" \
    "${CUDA_PATH:+$CUDA_PATH/lib64}" "${CUDA_HOME:+$CUDA_HOME/lib64}" /usr/local/*/lib64; do
    for file in "$place"/libnvrtc.so.{13,12}; do
      [[ -n $place && -e $file ]] && echo "$file" && return 0
    done
  done
  if have ldconfig || [[ -x /sbin/ldconfig ]]; then
    file=$(PATH=$PATH:/sbin ldconfig -p | sed -n 's/.*=> \(.*\/libnvrtc\.so\.1[23]\)$/\1/p' | sort -V | tail -n 1)
    [[ -n $file ]] && echo "$file" && return 0
  fi
  return 1
}

# The Python of the package's tests: that of .venv, with the modules that they need.
have_python_modules() {
  [[ -x $venv/bin/python ]] && "$venv/bin/python" -c '
import os, sysconfig
import nanobind, numpy, pytest
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2> /dev/null
}

# The packages that parts of the Python package are for; their tests are skipped without them.
hosts=(onnx jax)
have_python_hosts() {
  [[ -x $venv/bin/python ]] && "$venv/bin/python" -c '
import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))' "${hosts[@]}" 2> /dev/null
}

# ---- Debian packages ------------------------------------------------------------------------------

missing=()
need() { package_installed "$1" || missing+=("$1"); }

need_venv() {
  { have python3 && python3 -c 'import ensurepip, venv' 2> /dev/null; } || missing+=(python3-venv)
}

have_python_headers() {
  have python3 && python3 -c '
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

list_missing() {
  missing=()
  have_compiler || missing+=(g++)
  have_cmake || missing+=(cmake)
  have ninja || missing+=(ninja-build)
  need libfmt-dev
  need nlohmann-json3-dev
  need libsqlite3-dev
  need libsqlitecpp-dev
  need libcli11-dev
  need doctest-dev
  need librapidcheck-dev
  # LLVM's CMake files name these and its package does not pull all of them in.
  need zlib1g-dev
  need libzstd-dev
  need libxml2-dev
  find_llvm > /dev/null || missing+=(llvm-dev)
  if $want_nvrtc && ! find_nvrtc > /dev/null; then
    need_venv
  elif $want_python && ! have_python_modules; then
    need_venv
  fi
  if $want_python && ! have_python_headers; then missing+=(python3-dev); fi
}

# What a build can do without a package that the distribution lacks; empty if it can do nothing.
way_around() {
  case $1 in
    llvm-dev) echo "configure with -DFLASHWRIGHT_CPU=OFF to build without the CPU plugin, or point LLVM_DIR at an LLVM of your own (16 or newer)" ;;
    libcli11-dev) echo "configure with -DFLASHWRIGHT_CLI=OFF to build without the command line, or install CLI11 2.1 or newer from source" ;;
    doctest-dev | librapidcheck-dev) echo "configure with -DFLASHWRIGHT_TESTS=OFF to build without the tests, or install it from source" ;;
    python3-venv) echo "NVRTC must then come from a CUDA toolkit, or run again with --no-nvrtc --no-python" ;;
    python3-dev) echo "configure with -DFLASHWRIGHT_PYTHON=OFF to build without the Python package" ;;
  esac
}

as_root() {
  if [[ $EUID -eq 0 ]]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

available() {
  local candidate
  candidate=$(apt-cache policy "$1" 2> /dev/null | sed -n 's/^  Candidate: //p')
  [[ -n $candidate && $candidate != '(none)' ]]
}

# Leaves the names to install in `chosen` and the unavailable ones in `unavailable`.
choose_packages() {
  local package version name
  chosen=()
  unavailable=()
  for package in "${missing[@]}"; do
    name=
    if [[ $package == llvm-dev ]]; then
      for version in "${llvm_versions[@]}"; do
        if available "llvm-$version-dev"; then
          name=llvm-$version-dev
          break
        fi
      done
    elif available "$package"; then
      name=$package
    fi
    if [[ -n $name ]]; then chosen+=("$name"); else unavailable+=("$package"); fi
  done
}

# Explains each unavailable package; fails if the build cannot do without one of them.
explain_unavailable() {
  local package way fatal=0
  for package in "${unavailable[@]}"; do
    way=$(way_around "$package")
    if [[ -n $way ]]; then
      warn "no package $package in the configured sources: $way"
    else
      warn "no package $package in the configured sources, and the build needs it: install it from source"
      fatal=1
    fi
  done
  if [[ ${ID:-} == ubuntu ]]; then
    warn "on Ubuntu most of these are in 'universe': sudo add-apt-repository universe, then run this again"
  fi
  return "$fatal"
}

install_packages() {
  local rc=0
  if ! have apt-get; then
    warn "this is no Debian or Ubuntu (no apt-get); install the equivalents of: ${missing[*]}"
    return 1
  fi
  if [[ $EUID -ne 0 ]] && ! have sudo; then
    warn "not root and no sudo; as root, run: $root/scripts/setup.sh"
    return 1
  fi
  as_root apt-get update -q || warn "apt-get update failed; trying with the package lists that are there"
  choose_packages
  if ((${#chosen[@]})); then
    say "installing ${chosen[*]}"
    if ! as_root apt-get install -y -q --no-install-recommends "${chosen[@]}"; then
      warn "apt-get could not install them; its own message above says why"
      rc=1
    fi
  fi
  if ((${#unavailable[@]})); then explain_unavailable || rc=1; fi
  return "$rc"
}

# ---- NVRTC ----------------------------------------------------------------------------------------

install_nvrtc() {
  local package
  if ! have python3; then
    warn "no python3, so no NVRTC from PyPI; install a CUDA toolkit to run on a GPU"
    return 0
  fi
  if [[ ! -x $venv/bin/python ]] && ! python3 -m venv "$venv"; then
    warn "cannot make $venv, so no NVRTC from PyPI; install a CUDA toolkit to run on a GPU"
    return 0
  fi
  for package in 'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-nvrtc-cu12>=12.4'; do
    say "installing $package into $venv"
    if "$venv/bin/python" -m pip install -q --disable-pip-version-check --retries 1 "$package"; then
      [[ -n ${SUDO_UID:-} ]] && chown -R "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$venv"
      return 0
    fi
  done
  warn "NVRTC could not be downloaded. Everything builds and the CPU backend works without it;"
  warn "to compile CUDA kernels, run this again with a network or install a CUDA toolkit"
}

# ---- The Python package ---------------------------------------------------------------------------

install_python_modules() {
  if ! have python3 || { [[ ! -x $venv/bin/python ]] && ! python3 -m venv "$venv"; }; then
    warn "cannot make $venv: the Python package is neither built nor tested"
    return 0
  fi
  say "installing nanobind, numpy and pytest into $venv"
  if ! "$venv/bin/python" -m pip install -q --disable-pip-version-check --retries 1 'nanobind>=3.1,<4' numpy pytest; then
    warn "they could not be downloaded: the Python package is neither built nor tested"
    return 0
  fi
  if [[ -n ${SUDO_UID:-} ]]; then chown -R "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$venv"; fi
}

install_python_hosts() {
  [[ -x $venv/bin/python ]] || return 0
  say "installing ${hosts[*]} into $venv"
  if ! "$venv/bin/python" -m pip install -q --disable-pip-version-check --retries 1 "${hosts[@]}"; then
    warn "they could not be downloaded: the tests of flashwright.onnx and flashwright.jax are skipped"
    return 0
  fi
  if [[ -n ${SUDO_UID:-} ]]; then chown -R "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$venv"; fi
}

# ---- Main -----------------------------------------------------------------------------------------

if [[ -r /etc/os-release ]]; then
  # shellcheck source=/dev/null
  . /etc/os-release
fi

list_missing
if $check_only; then
  if $want_nvrtc && ! find_nvrtc > /dev/null; then missing+=("NVRTC (pip: nvidia-cuda-nvrtc)"); fi
  if $want_python && ! have_python_modules; then missing+=("nanobind, numpy, pytest (pip)"); fi
  if $want_python && ! have_python_hosts; then missing+=("${hosts[*]} (pip)"); fi
  if ((${#missing[@]})); then
    say "missing:"
    printf '  %s\n' "${missing[@]}"
    exit 1
  fi
  say "nothing is missing"
  exit 0
fi

status=0
if ((${#missing[@]})); then
  install_packages || status=1
else
  say "build tools and libraries: all there"
fi
if $want_nvrtc && ! find_nvrtc > /dev/null; then install_nvrtc; fi
if $want_python && ! have_python_modules; then install_python_modules; fi
if $want_python && ! have_python_hosts; then install_python_hosts; fi

have_cmake || { warn "CMake 3.24 or newer is still missing"; status=1; }
have_compiler || { warn "a compiler for C++20 is still missing (GCC 12 or newer)"; status=1; }
if llvm=$(find_llvm); then say "LLVM $llvm"; else say "LLVM: none; configure with -DFLASHWRIGHT_CPU=OFF"; fi
if nvrtc=$(find_nvrtc); then
  say "NVRTC $nvrtc"
elif $want_nvrtc; then
  say "NVRTC: none; CUDA kernels can be emitted but not compiled"
fi
if ((status == 0)); then say "done"; else warn "something is still missing, see above"; fi
exit "$status"
