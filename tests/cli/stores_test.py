"""The stores as the command line shows them, and the places where they cannot be."""

import json
import os
import subprocess
import unittest

from support import BINARY, HAS_CPU, HAS_NVRTC, MINILM, SOURCE, CliTest, main, needs_cpu

RUN = ["run", "--q", f"{MINILM}/q.npy", "--k", f"{MINILM}/k.npy", "--v", f"{MINILM}/v.npy", "--target", "cpu"]
COMPILE = ["compile", "--head-dim", "32", "--target", "cpu" if HAS_CPU else "sm_80"]


@unittest.skipUnless(HAS_CPU or HAS_NVRTC, "neither LLVM nor NVRTC is there to fill a store")
class Cache(CliTest):
    def kernels(self, env=None):
        return self.ok("cache", "ls", "--json", env=env).json()["kernels"]

    def other_home(self):
        os.mkdir(self.path("other"))
        return self.environment(HOME=self.path("other"))

    def test_path(self):
        text = self.ok("cache", "path").out
        self.assertIn(self.path(".cache/flashwright/"), text)
        self.assertIn(self.path(".local/share/flashwright/"), text)
        env = self.environment(XDG_CACHE_HOME=self.path("xc"), XDG_DATA_HOME=self.path("xd"))
        report = self.ok("cache", "path", "--json", env=env).json()
        self.assertIn("/xc/flashwright/", report["kernels"]["path"])
        self.assertIn("/xd/flashwright/", report["tuning"]["path"])
        env = self.environment(FLASHWRIGHT_CACHE_DIR=self.path("vc"), FLASHWRIGHT_DATA_DIR=self.path("vd"))
        self.assertIn("/vc/", self.ok("cache", "path", env=env).out)
        report = self.ok("cache", "path", "--json", "--cache-dir", self.path("fc"), "--data-dir", self.path("fd"),
                         env=env).json()
        self.assertIn("/fc/", report["kernels"]["path"], "flags go before the environment")
        self.assertIn("/fd/", report["tuning"]["path"])

    def test_ls_and_show(self):
        self.assertIn("0 kernels", self.ok("cache", "ls").out)
        key = self.ok(*COMPILE, "--json").json()["key"]
        self.assertIn(key[:12], self.ok("cache", "ls").out)
        self.assertIn("1 kernel,", self.ok("cache", "ls").out)
        self.assertIn(key, self.ok("cache", "show", key[:8]).out)
        self.assertEqual(self.ok("cache", "show", key[:8], "--json").json()["kernels"][0]["key"], key)
        self.fails(2, ["'zz'"], "cache", "show", "zz")

    def test_verify_and_prune(self):
        self.ok(*COMPILE)
        self.assertIn("1 kernel intact, 0 damaged", self.ok("cache", "verify").out)
        self.assertIn("dropped 0 kernels", self.ok("cache", "prune").out)
        self.assertIn("dropped 0 kernels", self.ok("cache", "prune", "1G").out)
        self.assertIn("dropped 1 kernel;", self.ok("cache", "prune", "0").out)
        self.assertEqual(self.kernels(), [])
        for size in ["many", "-1", "1X"]:
            self.assertEqual(self.run_cli("cache", "prune", "--", size).code, 2)

    def test_export_and_import(self):
        key = self.ok(*COMPILE, "--json").json()["key"]
        self.assertIn("exported 1 kernel", self.ok("cache", "export", "all.jsonl").out)
        other = self.other_home()
        self.assertEqual(self.kernels(other), [])
        self.assertIn("1 added, 0 known", self.ok("cache", "import", "all.jsonl", env=other).out)
        self.assertIn("0 added, 1 known", self.ok("cache", "import", "all.jsonl", env=other).out)
        self.assertEqual(self.kernels(other)[0]["key"], key)
        self.assertTrue(self.ok(*COMPILE, "--json", env=other).json()["from_store"])

    def test_import_of_what_is_damaged(self):
        self.ok(*COMPILE)
        self.ok("cache", "export", "all.jsonl")
        with open(self.path("all.jsonl"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        lines[1] = lines[1].replace("A", "B", 40)
        with open(self.path("bad.jsonl"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        other = self.other_home()
        result = self.run_cli("cache", "import", "bad.jsonl", env=other)
        self.assertEqual(result.code, 9, str(result))
        self.assertIn("1 refused", result.out)
        self.assertEqual(self.kernels(other), [])
        self.fails(8, ["missing.jsonl"], "cache", "import", "missing.jsonl")
        self.fails(8, ["no/folder/x"], "cache", "export", "no/folder/x")
        with open(self.path("empty.jsonl"), "w", encoding="utf-8"):
            pass
        self.fails(2, ["empty"], "cache", "import", "empty.jsonl")

    def test_json(self):
        self.ok(*COMPILE)
        for operation in [["path"], ["ls"], ["show", ""], ["verify"], ["prune"], ["export", "x"], ["import", "x"]]:
            result = self.run_cli("cache", *operation, "--json")
            self.assertIsInstance(result.json(), dict)
            self.assertEqual(result.err, "")


class Decisions(CliTest):
    """Winners as short lines: those that ship with the library, and those of a store."""

    SHIPPED = os.path.join(SOURCE, "share", "tuned", "nvidia-h200.jsonl")
    ASK = ["explain", "--device", "h200", "--head-dim", "128", "--mask", "causal", "--batch", "4", "--heads", "16",
           "--seq", "4096"]

    def setUp(self):
        super().setUp()
        with open(self.SHIPPED, encoding="utf-8") as file:
            self.lines = file.read().splitlines()
        question = {"problem": "forward bf16 d128 causal sm_90a", "bucket": "q12288 kv12288 full"}
        rows = [json.loads(line) for line in self.lines]
        self.schedule, = [row["schedule"] for row in rows if question.items() <= row.items()]

    def import_lines(self, lines, code=0):
        with open(self.path("some.jsonl"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        result = self.run_cli("cache", "import", "some.jsonl")
        self.assertEqual(result.code, code, str(result))
        return result.out

    def test_explain_tells_what_was_shipped(self):
        text = self.ok(*self.ASK).out
        for word in ["shipped tuning result of NVIDIA H200 SXM, 20", self.schedule, "measured elsewhere"]:
            self.assertIn(word, text)
        report = self.ok(*self.ASK, "--json").json()
        self.assertEqual((report["chosen_by"], report["schedule"]), ("shipped", self.schedule))
        self.assertTrue(report["shipped_from"].startswith("NVIDIA H200 SXM, "))
        other = [{"h200": "h100"}.get(word, word) for word in self.ASK]
        self.assertEqual(self.ok(*other, "--json").json()["chosen_by"], "default")

    def test_a_winner_of_ones_own_goes_first_and_one_that_cannot_run_is_passed_over(self):
        own = "q128.kv128.w12.st2.b1"
        self.import_lines([line.replace(self.schedule, own) for line in self.lines])
        report = self.ok(*self.ASK, "--json").json()
        self.assertEqual((report["chosen_by"], report["schedule"]), ("measured", own))
        bad = [line.replace(self.schedule, "q128.kv512.w12.st2.b1") for line in self.lines]
        os.rename(self.path(".local"), self.path("older"))
        self.import_lines(bad)
        text = self.ok(*self.ASK).out
        self.assertIn("not       q128.kv512.w12.st2.b1: ", text)
        self.assertIn("shipped tuning result", text)

    def test_export_is_what_was_imported(self):
        self.fails(2, ["has none"], "cache", "export", "--decisions", "out.jsonl")
        self.assertIn(f"decisions {len(self.lines) - 1} added, 0 known", self.import_lines(self.lines))
        self.assertIn(f"0 added, {len(self.lines) - 1} known", self.import_lines(self.lines))
        for device in [[], ["--device", "h200"]]:
            self.assertIn(f"{len(self.lines) - 1} decisions of NVIDIA H200",
                          self.ok("cache", "export", "--decisions", "out.jsonl", *device).out)
            with open(self.path("out.jsonl"), encoding="utf-8") as file:
                self.assertEqual(file.read().splitlines()[1:], self.lines[1:])
        self.fails(2, ["sm_90a sms132", "device is"], "cache", "export", "--decisions", "x.jsonl", "--device", "a100")
        self.assertFalse(os.path.exists(self.path("x.jsonl")))
        other = [line.replace("sms132", "sms66") for line in self.lines]
        self.import_lines(other)
        self.fails(2, ["sms132", "sms66", "device"], "cache", "export", "--decisions", "x.jsonl")

    def test_lines_that_are_wrong(self):
        out = self.import_lines([*self.lines[:3], self.lines[3].replace("schedule", "plan")], code=9)
        self.assertIn("2 added, 0 known already, 1 refused", out)
        self.assertIn("line 4: the schedule is missing", out)


@needs_cpu
class Places(CliTest):
    """Trouble with a store never fails a command: it is said in one line."""

    def stays_useful(self, env, words=()):
        for _ in range(2):
            result = self.run_cli(*RUN, "--check", "-o", self.path("o.npy"), env=env)
            self.assertEqual(result.code, 0, str(result))
            os.remove(self.path("o.npy"))
            for word in words:
                self.assertIn(word, result.err, str(result))
        return result

    def test_home_unset(self):
        self.stays_useful(self.environment(HOME=None))

    def test_home_that_does_not_exist_or_cannot_be_written(self):
        self.stays_useful(self.environment(HOME="/nowhere/home"))
        self.stays_useful(self.environment(HOME="/proc"))

    @unittest.skipIf(os.getuid() == 0, "root may write everywhere")
    def test_home_read_only(self):
        os.mkdir(self.path("home"), 0o500)
        self.stays_useful(self.environment(HOME=self.path("home")), ["flashwright: warn"])

    def test_folders_that_are_files(self):
        with open(self.path("file"), "w", encoding="utf-8") as file:
            file.write("not a folder")
        self.stays_useful(self.environment(FLASHWRIGHT_CACHE_DIR=self.path("file"),
                                           FLASHWRIGHT_DATA_DIR=self.path("file")))

    def test_memory(self):
        env = self.environment(FLASHWRIGHT_CACHE_DIR=":memory:", FLASHWRIGHT_DATA_DIR=":memory:")
        result = self.stays_useful(env)
        self.assertEqual(result.err, "")
        self.assertIn("the compiler in", result.out)

    def test_a_damaged_store(self):
        self.ok(*RUN)
        path = self.ok("cache", "path", "--json").json()["kernels"]["path"]
        with open(path, "r+b") as file:
            file.write(os.urandom(8192))
        self.stays_useful(self.environment())
        self.ok("cache", "verify")

    def test_many_processes_share_one_compilation(self):
        processes = [self.start(*RUN, "--json") for _ in range(6)]
        for process in processes:
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual(self.ok("cache", "ls", "--json").json()["compiles"], 1)

    def test_an_empty_environment(self):
        done = subprocess.run([BINARY, *RUN, "--check"], env={}, capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    main()
