"""python -m flashwright: the command line, with the folders that a build against the wheel needs."""

from __future__ import annotations

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def include_dir() -> str:
    """The folder of flashwright/flashwright.h."""
    return os.path.join(_FOLDER, "include")


def cmake_dir() -> str:
    """The folder for -Dflashwright_DIR, which find_package(flashwright) takes."""
    return os.path.join(_FOLDER, "lib", "cmake", "flashwright")


def main() -> int:
    folders = {"--include-dir": include_dir, "--cmake-dir": cmake_dir}
    if len(sys.argv) == 2 and sys.argv[1] in folders:
        print(folders[sys.argv[1]]())
        return 0
    program = os.path.join(_FOLDER, "bin", "flashwright")
    if not os.access(program, os.X_OK):
        print(f"flashwright: error: {program} is missing: this build has no command line (FLASHWRIGHT_CLI=OFF)",
              file=sys.stderr)
        return 6
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
