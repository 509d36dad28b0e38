"""An installed flashwright as other programs meet it: CMake package, pkg-config, headers, symbols, examples."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.environ["FLASHWRIGHT_TEST_BUILD"]
SOURCE = os.environ["FLASHWRIGHT_TEST_SOURCE"]
CC, CXX = os.environ["FLASHWRIGHT_TEST_CC"], os.environ["FLASHWRIGHT_TEST_CXX"]
GENERATOR = os.environ["FLASHWRIGHT_TEST_GENERATOR"]
FLAGS = os.environ.get("FLASHWRIGHT_TEST_FLAGS", "").split()
HAS_CPU = os.environ.get("FLASHWRIGHT_TEST_CPU", "") == "1"
HAS_CLI = os.environ.get("FLASHWRIGHT_TEST_CLI", "") == "1"
EXAMPLES = os.path.join(SOURCE, "examples")
PROGRAMS = ["first_kernel", "c_api", "block_sparse", "kv_cache_decode", "warm_server"]
HEADERS = ["flashwright.h", "flashwright.hpp", "config.hpp"]


def call(*command, cwd=None, env=None, code=0):
    done = subprocess.run(command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != code:
        raise AssertionError(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}")
    return done.stdout


class Installed(unittest.TestCase):
    """The tree is installed in one place and moved to another, since an installation may be moved."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="flashwright-embed-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        call("cmake", "--install", BUILD, "--prefix", os.path.join(cls.folder, "first"))
        cls.prefix = os.path.join(cls.folder, "moved")
        os.rename(os.path.join(cls.folder, "first"), cls.prefix)
        cls.files = [os.path.relpath(os.path.join(folder, name), cls.prefix)
                     for folder, _, names in os.walk(cls.prefix) for name in names]
        cls.library = os.path.join(cls.prefix, next(f for f in cls.files if f.endswith("/libflashwright.so")))
        cls.include = os.path.join(cls.prefix, "include")
        # Stores in the temporary folder, shared by all programs, and nothing from the environment.
        cls.env = {k: v for k, v in os.environ.items() if not k.startswith(("FLASHWRIGHT_", "XDG_"))}
        cls.env["HOME"] = cls.folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def configure(self, source, build, *arguments, code=0):
        flags = " ".join(FLAGS)
        return call("cmake", "-G", GENERATOR, "-S", source, "-B", self.path(build),
                    f"-DCMAKE_PREFIX_PATH={self.prefix}",
                    f"-DCMAKE_C_COMPILER={CC}", f"-DCMAKE_CXX_COMPILER={CXX}", f"-DCMAKE_C_FLAGS={flags}",
                    f"-DCMAKE_CXX_FLAGS={flags}", *arguments, env=self.env, code=code)

    def project(self, name, text, **sources):
        """A CMake project of its own in a folder."""
        os.makedirs(self.path(name))
        for file, content in {"CMakeLists.txt": text, **{k.replace("__", "."): v for k, v in sources.items()}}.items():
            with open(os.path.join(self.path(name), file), "w", encoding="utf-8") as out:
                out.write(content)
        return self.path(name)


class Tree(Installed):
    def test_what_is_installed(self):
        for header in HEADERS:
            self.assertIn(f"include/flashwright/{header}", self.files)
        for pattern in [r"lib.*/libflashwright\.so\.1$", r"lib.*/cmake/flashwright/flashwrightConfig\.cmake$",
                        r"lib.*/cmake/flashwright/flashwrightConfigVersion\.cmake$",
                        r"lib.*/pkgconfig/flashwright\.pc$"]:
            self.assertTrue(any(re.match(pattern, file) for file in self.files), f"{pattern} in {self.files}")
        beside = os.path.join(os.path.dirname(self.library), "libflashwright-cpu.so")
        self.assertEqual(os.path.exists(beside), HAS_CPU, "the plugin lies beside the library")
        self.assertEqual("bin/flashwright" in self.files, HAS_CLI)
        for file in self.files:
            self.assertFalse(file.endswith(".a") or "fmt" in file or "doctest" in file, file)

    def test_exported_symbols(self):
        with open(os.path.join(SOURCE, "tests", "embed", "symbols.txt"), encoding="utf-8") as file:
            expected = file.read().split()
        self.assertEqual(sorted(self.exports(self.library)), expected)
        with open(os.path.join(self.include, "flashwright", "flashwright.h"), encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        declared = re.findall(r"FLASHWRIGHT_API\s[^;(]*?\b(flashwright_\w+)\s*\(", text)
        self.assertEqual(sorted(declared), expected, "every declared function, and nothing else")
        if HAS_CPU:
            plugin = os.path.join(os.path.dirname(self.library), "libflashwright-cpu.so")
            self.assertEqual(self.exports(plugin), ["flashwright_cpu_plugin"])

    @staticmethod
    def exports(library):
        lines = call("nm", "-D", "--defined-only", library).splitlines()
        return [line.split()[-1].split("@")[0] for line in lines]

    def test_the_library_maps_neither_llvm_nor_cuda(self):
        needed = call("readelf", "-d", self.library)
        for name in ["LLVM", "cuda", "nvrtc", "SQLiteCpp"]:
            self.assertNotIn(name, "".join(re.findall(r"\(NEEDED\).*", needed)))
        self.assertNotIn("RUNPATH", needed)

    @unittest.skipUnless(HAS_CLI, "the command line is not built")
    def test_the_command_line_runs_from_where_it_is(self):
        text = call(os.path.join(self.prefix, "bin", "flashwright"), "doctor", env=self.env)
        self.assertIn("flashwright", text)
        if HAS_CPU:
            self.assertIn("cpu:", text)
        self.assertNotIn(self.path("first"), text)


class Headers(Installed):
    def compile(self, name, text, compiler, *flags):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        call(compiler, *flags, "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror",
             "-I" + self.include, "-c", self.path(name), "-o", self.path(name + ".o"))

    def test_each_is_the_first_include(self):
        for header in HEADERS:
            self.compile("first.cpp", f'#include "flashwright/{header}"\nint main() {{}}\n', CXX, "-std=c++20")

    def test_c_standards(self):
        for standard in ["c99", "c11", "c17"]:
            self.compile("first.c", '#include "flashwright/flashwright.h"\nint main(void) { return 0; }\n', CC,
                         f"-std={standard}", "-pedantic-errors")

    def test_cpp_without_exceptions(self):
        self.compile("plain.cpp", '#include "flashwright/flashwright.h"\n#include "flashwright/config.hpp"\n'
                     "int main() { return flashwright_abi_version() == 1 ? 0 : 1; }\n", CXX, "-std=c++20",
                     "-fno-exceptions", "-fno-rtti")


class Package(Installed):
    APP = "int main(void) { return flashwright_abi_version() == 1 ? 0 : 1; }\n"

    def test_examples(self):
        self.configure(EXAMPLES, "examples")
        call("cmake", "--build", self.path("examples"), env=self.env)
        for program in PROGRAMS:
            with self.subTest(program=program):
                if not HAS_CPU and program != "warm_server":
                    self.skipTest("the CPU plugin is not built")
                print(call(os.path.join(self.path("examples"), program), env=self.env), flush=True)

    def test_examples_are_short_and_on_public_headers_only(self):
        for name in os.listdir(EXAMPLES):
            if not name.endswith((".c", ".cpp", ".sh")):
                continue
            with open(os.path.join(EXAMPLES, name), encoding="utf-8") as file:
                text = file.read()
            self.assertLess(text.count("\n"), 80, name)
            for include in re.findall(r'#include "(.*)"', text):
                self.assertIn(include, [f"flashwright/{header}" for header in HEADERS], name)

    @unittest.skipUnless(HAS_CLI, "the command line is not built")
    def test_scripts(self):
        env = {**self.env, "FLASHWRIGHT": os.path.join(self.prefix, "bin", "flashwright")}
        text = call("bash", os.path.join(EXAMPLES, "read_the_kernel.sh"), self.folder, env=env)
        self.assertIn("constexpr int kTileQ", text)
        report = call(env["FLASHWRIGHT"], "doctor", env=self.env)
        if "NVRTC:" in report:
            self.skipTest("NVRTC was not found")
        text = call("bash", os.path.join(EXAMPLES, "offline_tuning.sh"), "8", env=env)
        text, after = text.split("== on the other machine")
        winner = re.findall(r"winner    (\S+), predicted by the model", text)[-1]
        self.assertRegex(after, "kernels   2 added, 0 known already, 0 refused")
        self.assertRegex(after, r"tuning    \d+ added, 0 known already, 0 refused")
        self.assertIn("device    NVIDIA H200 SXM (sm_90a)", after)
        self.assertIn(f"schedule {winner}\n", after, "what was tuned is what is used")
        self.assertIn("the model ranks it first", after)
        self.assertIn("from      the store", after)

    def test_a_project_in_c_alone(self):
        text = ("cmake_minimum_required(VERSION 3.24)\nproject(app LANGUAGES C)\nfind_package(flashwright 0.1 CONFIG "
                "REQUIRED COMPONENTS cuda)\nadd_executable(app main.c)\n"
                "target_link_libraries(app flashwright::flashwright)\n")
        source = self.project("c_alone", text, main__c='#include "flashwright/flashwright.h"\n' + self.APP)
        self.configure(source, "c_alone_build")
        call("cmake", "--build", self.path("c_alone_build"), env=self.env)
        call(os.path.join(self.path("c_alone_build"), "app"), env=self.env)

    def test_versions_and_components(self):
        text = "cmake_minimum_required(VERSION 3.24)\nproject(app LANGUAGES CXX)\n" \
               "find_package(flashwright %s CONFIG REQUIRED)\n"
        good = ["", "0.1", "0.1.0", "0.1 COMPONENTS cuda"] + (["COMPONENTS cpu cuda"] if HAS_CPU else [])
        bad = ["0.2", "1.0", "COMPONENTS abacus"] + ([] if HAS_CPU else ["COMPONENTS cpu"])
        for i, wanted in enumerate(good):
            self.configure(self.project(f"good{i}", text % wanted), f"good_build{i}")
        for i, wanted in enumerate(bad):
            self.configure(self.project(f"bad{i}", text % wanted), f"bad_build{i}", code=1)

    @unittest.skipUnless(shutil.which("pkg-config"), "pkg-config is not installed")
    def test_pkg_config(self):
        folder = os.path.dirname(os.path.join(self.prefix, next(f for f in self.files if f.endswith(".pc"))))
        env = {**self.env, "PKG_CONFIG_PATH": folder}
        flags = call("pkg-config", "--cflags", "--libs", "flashwright", env=env).split()
        self.assertEqual(call("pkg-config", "--modversion", "flashwright", env=env).strip(), "0.1.0")
        for compiler, standard, source in [(CC, "-std=c99", "c_api.c"), (CXX, "-std=c++20", "first_kernel.cpp")]:
            program = self.path(source + ".out")
            call(compiler, standard, "-pedantic", "-Wall", "-Wextra", "-Werror", *FLAGS, os.path.join(EXAMPLES, source),
                 *flags, "-lm", "-o", program)
            if HAS_CPU:
                call(program, env={**self.env, "LD_LIBRARY_PATH": os.path.dirname(self.library)})

    def test_as_a_sub_project(self):
        """Configured only: nothing of ours but the library may appear in the project around it."""
        text = ("cmake_minimum_required(VERSION 3.24)\nproject(around LANGUAGES C CXX)\n"
                f"add_subdirectory({SOURCE} flashwright)\nadd_executable(app main.cpp)\n"
                "target_link_libraries(app PRIVATE flashwright::flashwright)\n"
                "foreach(unwanted IN ITEMS flashwright_cli fw_test_support)\n"
                "  if(TARGET ${unwanted})\n    message(FATAL_ERROR \"${unwanted}\")\n  endif()\nendforeach()\n"
                "if(CMAKE_BUILD_TYPE OR FLASHWRIGHT_INSTALL OR CMAKE_RUNTIME_OUTPUT_DIRECTORY)\n"
                "  message(FATAL_ERROR \"settings of the project around were changed\")\nendif()\n")
        source = self.project("around", text, main__cpp='#include "flashwright/flashwright.hpp"\nint main() {}\n')
        self.configure(source, "around_build", f"-DFLASHWRIGHT_CPU={'ON' if HAS_CPU else 'OFF'}")
        with open(self.path("around_build/flashwright/cmake_install.cmake"), encoding="utf-8") as file:
            self.assertNotIn("libflashwright", file.read())


def main():
    result = unittest.main(exit=False, verbosity=2).result
    for test, why in result.skipped:
        print(f"skipped: {test.id()}: {why}")
    raise SystemExit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
