"""pip install . into a new environment: what the wheel holds, what it needs, and that it works. Takes minutes.

    wheel_check.py                 builds the wheel
    wheel_check.py PYTHON          checks the one that is installed in that environment
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
# What a manylinux system has.
SYSTEM = {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def call(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install(folder):
    python = os.path.join(folder, "bin", "python")
    call(sys.executable, "-m", "venv", folder)
    start = time.monotonic()
    call(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(ROOT))
    print(f"pip install . took {time.monotonic() - start:.0f} s")
    return python


def check_files(package):
    names = {path.relative_to(package).as_posix() for path in package.rglob("*")}
    for name in ("py.typed", "_native.pyi", "bin/flashwright", "lib/libflashwright.so.1",
                 "include/flashwright/flashwright.h", "lib/cmake/flashwright/flashwrightConfig.cmake"):
        assert name in names, f"{name} is not in the wheel: {sorted(names)}"
    assert not [name for name in names if name.endswith((".a", ".cpp", ".o"))]


def check_libraries(package):
    """Each library needs the system's alone, or what lies in lib/."""
    own = set(os.listdir(package / "lib"))
    files = [*package.glob("_native*.so"), *(package / "lib").glob("*.so*"), package / "bin" / "flashwright"]
    assert len(files) >= 3, files
    for file in files:
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", call("readelf", "-d", file)))
        assert needed <= SYSTEM | own, f"{file.name} needs {sorted(needed - SYSTEM - own)}"


def check_use(python, folder):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FLASHWRIGHT_", "PYTHON"))}
    variables.update(FLASHWRIGHT_CACHE_DIR=":memory:", FLASHWRIGHT_DATA_DIR=":memory:")
    version = call(python, "-m", "flashwright", "--version", env=variables, cwd=folder)
    assert "flashwright" in version, version
    call(python, "-m", "flashwright", "doctor", env=variables, cwd=folder)
    source = pathlib.Path(folder) / "app"
    source.mkdir(exist_ok=True)
    (source / "main.c").write_text('#include "flashwright/flashwright.h"\n'
                                   "int main(void) { return flashwright_abi_version() != 1; }\n")
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(app LANGUAGES C)\n"
        "find_package(flashwright 0.1 CONFIG REQUIRED)\n"
        "add_executable(app main.c)\ntarget_link_libraries(app flashwright::flashwright)\n")
    found = call(python, "-m", "flashwright", "--cmake-dir", env=variables).strip()
    call("cmake", "-S", source, "-B", source / "build", f"-Dflashwright_DIR={found}")
    call("cmake", "--build", source / "build")
    call(source / "build" / "app")
    call(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "numpy")
    print(call(python, ROOT / "examples" / "python" / "attention.py", env=variables, cwd=folder))


def main():
    with tempfile.TemporaryDirectory(prefix="flashwright-wheel-") as folder:
        python = sys.argv[1] if len(sys.argv) > 1 else install(os.path.join(folder, "environment"))
        where = call(python, "-c", "import flashwright; print(flashwright.__file__)", cwd=folder).strip()
        package = pathlib.Path(where).parent
        check_files(package)
        check_libraries(package)
        check_use(python, folder)


if __name__ == "__main__":
    main()
