"""flashwright tune and bench: reports, progress, ctrl-C, and what a session leaves behind."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree

from support import MINILM, SOURCE, CliTest, interrupt, main, needs_cpu, needs_nvrtc

CPU = ["--dtype", "fp32", "--head-dim", "32", "--target", "cpu"]
SHAPE = ["--batch", "2", "--heads", "12", "--seq", "480"]
ABSENT = ["--dtype", "bf16", "--head-dim", "64", "--mask", "causal"]


@needs_cpu
class Tune(CliTest):
    def test_a_session_and_what_follows_from_it(self):
        report = self.ok("tune", *CPU, *SHAPE, "--budget", "8s", "--json").json()
        self.assertEqual(report["decision"]["grade"], "measured")
        self.assertGreaterEqual(report["decision"]["gain"], 0)
        self.assertIn("noise", report["decision"])
        self.assertTrue(report["device"]["present"])
        self.assertGreater(report["legal"], 10)
        self.assertLess(report["seconds"], 60)
        winner = report["decision"]["schedule"]
        self.assertGreater(report["estimates"][winner]["smem_bytes"], 0)
        timed = [trial for trial in report["trials"] if "time_us" in trial]
        self.assertGreaterEqual(len({trial["schedule"] for trial in timed}), 2)

        explained = self.ok("explain", *CPU, *SHAPE, "--json").json()
        self.assertEqual((explained["chosen_by"], explained["schedule"]), ("measured", winner))
        self.assertTrue(explained["in_store"])
        text = self.ok("explain", *CPU, *SHAPE).out
        self.assertIn("won a measured search", text)
        self.assertIn("Alternatives, as measured", text)
        files = ["--q", f"{MINILM}/q.npy", "--k", f"{MINILM}/k.npy", "--v", f"{MINILM}/v.npy"]
        run = self.ok("run", *files, "--target", "cpu", "--check", "--json").json()
        self.assertEqual(run["kernel"]["selection"]["schedule"], winner)
        self.assertTrue(run["kernel"]["from_store"])
        slots = self.ok("cache", "ls", "--json").json()["tuning"]
        self.assertEqual(slots[0]["decision"]["schedule"], winner)
        # A length of the same bucket is served without any work; tuning results travel by export.
        near = self.ok("explain", *CPU, "--batch", "2", "--heads", "12", "--seq", "490", "--json").json()
        self.assertEqual((near["chosen_by"], near["schedule"]), ("measured", winner))
        self.ok("cache", "export", "all.jsonl")
        os.mkdir(self.path("other"))
        other = self.environment(HOME=self.path("other"))
        self.ok("cache", "import", "all.jsonl", env=other)
        explained = self.ok("explain", *CPU, *SHAPE, "--json", env=other).json()
        self.assertEqual((explained["chosen_by"], explained["schedule"]), ("measured", winner))

    def test_words(self):
        result = self.ok("tune", *CPU, *SHAPE, "--budget", "6s", "--all")
        for word in ["device    ", "problem   forward fp32 d32", "measured at b2 h12/12 q480 kv480", "legal schedule",
                     "to default", "winner", "gain      ", "why       ", "queries a tile are", "an L1 of", "noise     ",
                     "Never compiled", "stored    "]:
            self.assertIn(word, result.out)

    def test_effort_tune(self):
        files = ["--q", f"{MINILM}/q.npy", "--k", f"{MINILM}/k.npy", "--v", f"{MINILM}/v.npy"]
        first = self.ok("run", *files, "--target", "cpu", "--effort", "tune", "--check")
        self.assertIn("tuning for up to", first.err)
        self.assertIn("won a measured search", first.out)
        second = self.ok("run", *files, "--target", "cpu", "--effort", "tune")
        self.assertEqual(second.err, "")

    def wait_for(self, stream, pattern, seconds):
        """What came until a line matched."""
        text, end = "", time.monotonic() + seconds
        while time.monotonic() < end:
            ready, _, _ = select.select([stream], [], [], 0.5)
            if ready:
                text += os.read(stream, 65536).decode()
            if re.search(pattern, text):
                return text
        self.fail(f"no '{pattern}' in {text!r}")

    def test_interrupt(self):
        process = self.start("tune", *CPU, *SHAPE, "--budget", "60s")
        text = self.wait_for(process.stderr.fileno(), r"of 60 s  \d+/\d+ tried, (leader|the default leads)", 180)
        self.assertNotIn("\r", text, "plain lines where no terminal is")
        interrupt(process)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertIn("stopping after this block", err)
        for word in ["stopped what was learned is kept", "the same command goes on from here", "winner"]:
            self.assertIn(word, " ".join(out.split()))
        self.assertGreater(self.ok("cache", "ls", "--json").json()["tuning"][0]["trials"], 0)

    def test_interrupt_with_json(self):
        process = self.start("tune", *CPU, *SHAPE, "--budget", "10m", "--json")
        time.sleep(6)
        interrupt(process)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, err), (130, ""))
        self.assertTrue(json.loads(out)["interrupted"])

    def test_second_interrupt_ends_at_once(self):
        process = self.start("tune", *CPU, *SHAPE, "--budget", "10m")
        time.sleep(3)
        start = time.monotonic()
        interrupt(process)
        time.sleep(0.02)
        interrupt(process)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertLess(time.monotonic() - start, 5)

    def test_terminal(self):
        try:
            master, slave = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal can be opened: {error}")
        process = self.start("tune", *CPU, *SHAPE, "--budget", "10m", stderr=slave, env=self.environment(TERM="xterm"))
        os.close(slave)
        text = self.wait_for(master, r"of 600 s  \d+/\d+ tried, .*of 600 s", 120)
        self.assertIn("\r\x1b[K", text, "one line, drawn again")
        self.assertNotIn("tried\n", text)
        interrupt(process)
        self.wait_for(master, "stopping after this block", 60)
        process.communicate(timeout=60)
        os.close(master)
        self.assertEqual(process.returncode, 130)


@needs_nvrtc
class AbsentDevice(CliTest):
    def test_predicted(self):
        report = self.ok("tune", *ABSENT, "--device", "h100", "--budget", "6s", "--json").json()
        self.assertEqual(report["decision"]["grade"], "predicted")
        self.assertFalse(report["device"]["present"])
        self.assertTrue(all(trial.get("samples") is None for trial in report["trials"]))
        text = self.ok("tune", *ABSENT, "--device", "h100", "--budget", "4s").out
        for word in ["not present: results are predicted", "ranked by the model, not measured", "registers", "spills",
                     "predicted by the model: nothing was measured", "227 KiB shared memory"]:
            self.assertIn(word, text)
        self.assertIn("the model ranks the schedule first", self.ok("compile", *ABSENT, "--target", "sm_90a", "--json")
                      and self.ok("compile", *ABSENT, "--target", "sm_90a").out)

    def test_profile_from_a_file(self):
        profile = {"name": "a GPU of my own", "target": "sm_86", "sm_count": 20, "l2_bytes": 2 << 20, "clock_ghz": 1.5,
                   "memory_gbps": 200, "peak_tflops": {"bf16": 40, "fp16": 40}}
        with open(self.path("mine.json"), "w", encoding="utf-8") as file:
            json.dump(profile, file)
        text = self.ok("tune", *ABSENT, "--device", "mine.json", "--budget", "3s").out
        self.assertIn("a GPU of my own (sm_86)", text)
        self.assertIn("99 KiB shared memory", text)
        for change, word in [({"target": "sm_1"}, "sm_1"), ({"colour": "green"}, "colour"),
                             ({"sm_count": -1}, "sm_count")]:
            with open(self.path("mine.json"), "w", encoding="utf-8") as file:
                json.dump({**profile, **change}, file)
            self.fails(2, [word], "tune", *ABSENT, "--device", "./mine.json", "--budget", "3s")
        with open(self.path("mine.json"), "w", encoding="utf-8") as file:
            file.write("{")
        self.fails(2, ["--device mine.json", "not JSON"], "tune", *ABSENT, "--device", "mine.json")

    def test_the_winner_is_found_again(self):
        """For a device that is not the one assumed for its target."""
        winner = self.ok("tune", *ABSENT, *SHAPE, "--device", "h200", "--budget", "4s", "--json").json()
        winner = winner["decision"]["schedule"]
        for target in [[], ["--target", "sm_90a"]]:
            report = self.ok("explain", *ABSENT, *SHAPE, *target, "--device", "h200", "--json").json()
            self.assertEqual((report["chosen_by"], report["schedule"]), ("predicted", winner))
            report = self.ok("compile", *ABSENT, *SHAPE, *target, "--device", "h200", "--json").json()
            self.assertEqual((report["chosen_by"], report["from_store"]), ("predicted", True))
        other = self.ok("explain", *ABSENT, *SHAPE, "--target", "sm_90a", "--json").json()
        self.assertEqual(other["chosen_by"], "default")

    def test_the_library_is_missing(self):
        self.fails(6, ["NVRTC"], "tune", *ABSENT, "--device", "h100",
                   env=self.environment(FLASHWRIGHT_NVRTC="/nowhere"))


@needs_cpu
class Bench(CliTest):
    def test_against_unfused(self):
        arguments = ["bench", *CPU, "--batch", "1", "--heads", "4", "--seq", "256", "--seconds", "300ms"]
        rows = self.ok(*arguments, "--json").json()["kernels"]
        self.assertEqual([row["name"] for row in rows], ["tiled"])
        rows = self.ok(*arguments, "--against", "unfused", "--json").json()["kernels"]
        self.assertEqual([row["name"] for row in rows], ["tiled", "unfused"])
        self.assertGreater(rows[1]["workspace_bytes"], rows[0]["workspace_bytes"])
        self.assertGreater(rows[0]["tflops"], 0)
        self.assertLessEqual(rows[0]["low_us"], rows[0]["high_us"])
        text = self.ok(*arguments, "--against", "unfused").out
        for word in ["median", "TFLOP/s", "90 % lie in", "workspace", "+-", "times as fast as the unfused computation"]:
            self.assertIn(word, text)

    def paper(self, *arguments):
        return self.ok("bench", "paper", "--target", "cpu", "--seq", "64,192", "--heads", "2", "--seconds", "50ms",
                       *arguments)

    def test_paper(self):
        report = self.paper("--json").json()
        self.assertEqual((report["config"]["dtype"], report["config"]["head_dim"]), ("fp32", 64))
        rows = report["rows"]
        self.assertEqual([(row["seq"], row["direction"], row["kernel"]) for row in rows],
                         [(seq, direction, kernel) for seq in (64, 192) for direction in ("forward", "backward")
                          for kernel in ("unfused", "tiled")])
        by = {(row["seq"], row["direction"], row["kernel"]): row for row in rows}
        size = 2 * 192 * 64 * 4  # bytes of a tensor of the longer length
        forward = 4 * size + 2 * 192 * 4
        self.assertEqual(by[192, "forward", "tiled"]["tensor_bytes"], forward)
        self.assertEqual(by[192, "forward", "unfused"]["predicted_bytes"], 4 * 2 * 192 * 192 * 4 + forward)
        self.assertEqual(by[192, "backward", "unfused"]["predicted_bytes"], 7 * 2 * 192 * 192 * 4 + 8 * size)
        tile = int(re.match(r"q(\d+)\.", by[192, "forward", "tiled"]["schedule"])[1])
        self.assertEqual(by[192, "forward", "tiled"]["predicted_bytes"], forward + 2 * size * (-(-192 // tile) - 1))
        self.assertEqual(by[192, "backward", "unfused"]["flops"], 4 * 2 * 2 * 192 * 192 * 64)
        backward = by[192, "backward", "tiled"]
        self.assertEqual(backward["flops"], 5 * 2 * 2 * 192 * 192 * 64)
        self.assertGreater(backward["predicted_bytes"], backward["tensor_bytes"])
        for row in rows:
            timed = (row["direction"], row["kernel"]) != ("backward", "unfused")
            self.assertEqual("time_us" in row, timed, row)
            self.assertEqual("why" in row, not timed, row)

        text = self.paper().out
        for word in ["2 heads of 64, fp32, mask none", "predicted", "tensors once", "GFLOP", "TFLOP/s",
                     "not measured: backward unfused", "knows no backward pass"]:
            self.assertIn(word, text)
        self.assertNotIn("measured  ", text)

    def test_paper_as_a_picture(self):
        with open(self.path("paper.json"), "w", encoding="utf-8") as file:
            file.write(self.paper("--json").out)
        subprocess.run([sys.executable, "-B", f"{SOURCE}/bench/paper.py", self.path("paper.json"),
                        self.path("paper.svg")], check=True)
        svg = xml.etree.ElementTree.parse(self.path("paper.svg")).getroot()
        # At both lengths three times, as there is no unfused backward pass, and four predictions.
        self.assertEqual(len(svg.findall(".//{*}circle")), 2 * (3 + 4))
        words = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
        for word in ["Memory traffic: 2 heads of 64, fp32", "unfused backward", "tiled forward", "64", "192"]:
            self.assertIn(word, words)

    def test_paper_of_what_is_asked(self):
        rows = self.paper("--direction", "forward", "--mask", "causal", "--dropout", "0.1", "--batch", "3", "--dtype",
                          "bf16", "--head-dim", "32", "--json").json()["rows"]
        self.assertEqual({(row["direction"], row["batch"]) for row in rows}, {("forward", 3)})
        for row in rows:
            self.assertEqual("why" in row, row["kernel"] == "unfused", row)
            pairs = row["seq"] ** 2 / (2 if row["kernel"] == "tiled" else 1)
            self.assertEqual(row["flops"], 3 * 2 * pairs * 4 * 32)
        self.assertIn("no dropout", rows[0]["why"])

    def test_paper_refuses(self):
        for words, flags in [
            (["--mask", "'window:1,1'", "none or causal"], ["--mask", "window:1,1"]),
            (["--measure", "'ncu'", "CUDA device"], ["--measure", "ncu"]),
            (["--measure", "'perf'", "ncu"], ["--measure", "perf"]),
            (["--seq", "'many'", "whole number"], ["--seq", "64,many"]),
            (["--seq", "''", "whole number"], ["--seq", "64,"]),
            (["--batch", "'0'", "from 1"], ["--batch", "0"]),
            (["direction", "sideways"], ["--direction", "sideways"])]:
            with self.subTest(flags=flags):
                self.fails(2, words, "bench", "paper", "--target", "cpu", *flags)


if __name__ == "__main__":
    main()
