"""The rules of CONTRIBUTING.md that a script can check: who includes whom, sizes, format, links."""

import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What each folder may include besides its own files and include/.
MAY_INCLUDE = {
    "core": set(),
    "generator": {"core"},
    "runtime": {"core"},
    "cache": {"core"},
    "tuner": {"core", "generator", "runtime", "cache"},
    "api": {"core", "generator", "runtime", "cache", "tuner"},
    "emulator": {"core"},
    "cli": {"emulator"},
    "examples": set(),
    "bench": set(),
    "bindings": set(),
}
# The CPU plugin is where a generator and a runtime meet LLVM, and each other.
PLUGIN = {"generator/cpu", "runtime/cpu"}
# bench/host measures parts of the library that no interface shows.
INSIDE = {"bench/host"}

# Written by the library, not by people.
EMITTED = ("tests/golden/", "examples/emitted/")

MAX_LINES = {"C++ file": 500, "template": 600, "function": 60, "kernel": 150}
MAX_COLUMNS = 120  # clang-format keeps C++ code, but not its comments, within 100


def tracked(*suffixes):
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    git = shutil.which("git")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False) if git else None
    if listed and listed.returncode == 0:
        names = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # an archive without its repository
        names = [path for path in ROOT.rglob("*") if not path.relative_to(ROOT).parts[0].startswith(("build", "."))]
    return sorted(path for path in names if path.suffix in suffixes and path.is_file())


def relative(path):
    return path.relative_to(ROOT).as_posix()


def of_the_library(path):
    return relative(path).split("/")[0] in MAY_INCLUDE or relative(path).startswith("include/")


def functions(lines):
    """(line of the opening brace, lines from it) of every function, by the indentation that clang-format gives."""
    for at, line in enumerate(lines[:-1]):
        if not re.search(r"\)( const)?( noexcept)?( override)?( -> [\w:<>*& ]+)? \{$", line):
            continue
        if re.match(r"^ *(if|for|while|switch|else|\}|namespace)\b", line):
            continue
        body = next((text for text in lines[at + 1:] if not text.startswith("#")), "")  # behind directives
        inside = len(body) - len(body.lstrip())
        end = " " * (inside - 2) + "}"
        for last in range(at + 1, len(lines)):
            if lines[last].rstrip(";,)") == end:
                yield at + 1, last - at + 1
                break


class Rules(unittest.TestCase):
    def none(self, faults):
        self.assertEqual(faults, [], "\n" + "\n".join(faults))

    def test_who_includes_whom(self):
        faults = []
        for path in tracked(".cpp", ".hpp", ".h", ".c"):
            name = relative(path)
            folder = name.split("/")[0]
            part = "/".join(name.split("/")[:2])
            if folder not in MAY_INCLUDE or part in INSIDE:
                continue
            for included in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
                first = included.split("/")[0]
                both = part in PLUGIN and "/".join(included.split("/")[:2]) in PLUGIN
                allowed = first in {folder, "flashwright"} | MAY_INCLUDE[folder] or "/" not in included or both
                if not allowed:
                    faults.append(f"{name} includes {included}")
        self.none(faults)

    def test_only_the_plugin_sees_llvm(self):
        self.none([relative(path) for path in tracked(".cpp", ".hpp", ".h", ".c")
                   if re.search(r"#include [<\"]llvm", path.read_text())
                   and "/".join(relative(path).split("/")[:2]) not in PLUGIN])

    def test_every_environment_variable_is_read(self):
        listed = re.findall(r"\{Variable::(\w+),", (ROOT / "core/env.cpp").read_text())
        self.assertGreater(len(listed), 10)
        text = "".join(path.read_text() for path in tracked(".cpp") if of_the_library(path))
        self.none([name for name in listed if f"env::Variable::{name}" not in text])

    def test_public_headers_need_nothing_of_ours(self):
        self.none([f"{relative(path)} includes {name}" for path in tracked(".h", ".hpp")
                   if relative(path).startswith("include/")
                   for name in re.findall(r'#include "([^"]+)"', path.read_text())
                   if not name.startswith("flashwright/")])

    def test_sizes(self):
        faults = []
        for path in tracked(".cpp", ".hpp", ".h", ".c", ".cu", ".cuh"):
            name = relative(path)
            if name.startswith(EMITTED):
                continue
            lines = path.read_text().splitlines()
            template = path.suffix in {".cu", ".cuh"}
            kind = "template" if template else "C++ file"
            if len(lines) >= MAX_LINES[kind]:
                faults.append(f"{name}: {len(lines)} lines; a {kind} stays under {MAX_LINES[kind]}")
            if not (template or of_the_library(path)) or name.startswith("examples/"):
                continue
            limit = MAX_LINES["kernel" if template else "function"]
            faults += [f"{name}:{first}: a function of {count} lines; the limit is {limit}"
                       for first, count in functions(lines) if count > limit]
        self.none(faults)

    def test_functions_are_found(self):
        text = ["int f(int a,", "      int b) {", "  return 1;", "}",
                "struct S {", "  void g() const {", "#if A", "    h();", "#endif", "  }", "};"]
        self.assertEqual(list(functions(text)), [(2, 3), (6, 5)])

    def test_columns(self):
        faults = []
        for path in tracked(".py", ".cpp", ".hpp", ".h", ".c", ".cuh", ".cu"):
            if relative(path).startswith(EMITTED):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if len(line) > MAX_COLUMNS:
                    faults.append(f"{relative(path)}:{number}: {len(line)} columns; the limit is {MAX_COLUMNS}")
        self.none(faults)

    def test_format(self):
        tool = shutil.which("clang-format-14") or shutil.which("clang-format")
        version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout if tool else ""
        if "version 14." not in version:
            print("skipped: format: clang-format 14 is not here")
            self.skipTest("clang-format 14 is not here")
        files = [str(path) for path in tracked(".cpp", ".hpp", ".h", ".c")]
        done = subprocess.run([tool, "--dry-run", *files], cwd=ROOT, capture_output=True, text=True)
        self.none(sorted(set(re.findall(r"^(\S+?):\d+:\d+: warning", done.stderr, re.M))))

    def test_links_lead_somewhere(self):
        faults = []
        for path in tracked(".md"):
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
                if "://" not in target and not target.startswith("mailto:") and not (path.parent / target).exists():
                    faults.append(f"{relative(path)}: {target}")
        self.none(faults)

    def test_every_folder_named_in_the_documentation_exists(self):
        text = (ROOT / "CONTRIBUTING.md").read_text()
        self.none([name for name in re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)*/)`", text)
                   if not (ROOT / name).is_dir() and not name.startswith("build")])

    def test_scripts_are_sound(self):
        for path in tracked(".sh"):
            subprocess.run(["bash", "-n", str(path)], check=True)


if __name__ == "__main__":
    unittest.main()
