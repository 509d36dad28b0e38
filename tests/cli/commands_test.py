"""Commands that need no tensors: help, doctor, supports, emit, compile, explain; JSON and exit codes."""

import json
import os
import re
import shutil
import subprocess
import unittest

from support import BINARY, CliTest, main, needs_cpu, needs_nvrtc

COMMANDS = ["doctor", "emit", "compile", "run", "tune", "bench", "supports", "explain"]
CACHE = ["path", "ls", "show", "verify", "prune", "export", "import"]
SM80 = ["--dtype", "bf16", "--head-dim", "64", "--mask", "causal", "--target", "sm_80"]


class Help(CliTest):
    def test_every_command_explains_itself(self):
        text = self.ok("--help").out
        for name in COMMANDS + ["cache"]:
            self.assertIn(name, text)
            self.assertIn("Usage", self.ok(name, "--help").out)
        for name in CACHE:
            self.assertIn("Usage", self.ok("cache", name, "--help").out)

    def test_exit_codes_are_documented(self):
        self.assertIn("9 check failed", self.ok("--help").out)
        with open(os.path.join(os.environ["FLASHWRIGHT_TEST_SOURCE"], "docs", "cli.md"), encoding="utf-8") as file:
            text = file.read()
        for code in [f"| {number} |" for number in [*range(10), 130]]:
            self.assertIn(code, text)

    def test_version(self):
        self.assertRegex(self.ok("--version").out, r"^flashwright \d+\.\d+\.\d+")

    def test_wrong_commands(self):
        for arguments in [(), ("fly",), ("emit", "--wings", "2"), ("run",), ("cache",), ("cache", "burn"),
                          ("cache", "show"), ("doctor", "extra")]:
            self.fails(2, [], *arguments)


class Doctor(CliTest):
    def test_problems_come_first(self):
        env = self.environment(FLASHWRIGHT_NVRTC="/nowhere/libnvrtc.so", FLASHWRIGHT_TYPO="1")
        text = self.ok("doctor", env=env).out
        self.assertLess(text.index("Problems"), text.index("Devices"))
        self.assertIn("/nowhere/libnvrtc.so", text)
        self.assertIn("FLASHWRIGHT_TYPO", text)

    def test_json(self):
        report = self.ok("doctor", "--json").json()
        for field in ["version", "devices", "driver", "nvrtc", "cpu", "stores", "environment", "known_devices",
                      "problems"]:
            self.assertIn(field, report)
        self.assertIn("h200", report["known_devices"])


class Check(CliTest):
    SMALL = ["--batch", "1", "--heads", "1", "--seq-q", "70", "--seq-kv", "100"]

    def setUp(self):
        super().setUp()
        if not re.search(r"^ +check ", self.ok("--help").out, re.M):
            self.skipTest("the emulator is not built")

    def test_a_good_kernel_passes(self):
        report = self.ok("check", *SM80, *self.SMALL, "--race", "--json").json()
        self.assertTrue(report["passed"])
        self.assertEqual([mode["mode"] for mode in report["modes"]], ["early", "late", "random", "skew"])
        for mode in report["modes"]:
            self.assertEqual(mode["findings"], [])
            self.assertLess(mode["error"], mode["tolerance"])
            self.assertEqual(mode["bank_conflicts"], 0)
        self.assertIn("skew", self.ok("check", *SM80, *self.SMALL, "--mode", "skew").out)

    def test_gradients_are_judged(self):
        backward = ["check", *SM80, *self.SMALL, "--direction", "backward", "--mode", "early"]
        mode = self.ok(*backward, "--race", "--json").json()["modes"][0]
        self.assertIn(mode["judged"], ["dq", "dk", "dv"])
        self.assertLess(mode["error"], mode["tolerance"])
        self.assertEqual(mode["findings"], [])
        templates = self.path("templates")
        shutil.copytree(os.path.join(os.environ["FLASHWRIGHT_TEST_SOURCE"], "templates"), templates)
        changed = os.path.join(templates, "sm80", "backward_scores.cuh")
        with open(changed, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("(d_weight - delta)", text)
        with open(changed, "w", encoding="utf-8") as file:
            file.write(text.replace("(d_weight - delta)", "(d_weight + delta)"))
        done = self.run_cli(*backward, env=self.environment(FLASHWRIGHT_TEMPLATE_DIR=templates))
        self.assertEqual(done.code, 9)
        self.assertIn("FAILED", done.out)

    def test_a_step_budget_ends_a_run(self):
        done = self.run_cli("check", *SM80, *self.SMALL, "--mode", "late", "--max-steps", "1000")
        self.assertEqual(done.code, 9)
        self.assertIn("step-budget", done.out)
        self.assertIn("stopped in", done.out)
        self.assertNotIn("NaN", done.out)

    def test_a_deadlock_comes_before_numbers(self):
        templates = self.path("templates")
        shutil.copytree(os.path.join(os.environ["FLASHWRIGHT_TEST_SOURCE"], "templates"), templates)
        changed = os.path.join(templates, "sm90", "consumer.cuh")
        with open(changed, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("arrive(output_sent);", text)
        with open(changed, "w", encoding="utf-8") as file:
            file.write(text.replace("arrive(output_sent);", ""))
        done = self.run_cli("check", "--dtype", "bf16", "--head-dim", "64", "--target", "sm_90a", "--schedule",
                            "q128.kv64.w12.st2.b1.pb1", "--batch", "1", "--heads", "2", "--seq-q", "300", "--seq-kv",
                            "64", "--mode", "early", "--json", env=self.environment(FLASHWRIGHT_TEMPLATE_DIR=templates))
        self.assertEqual(done.code, 9)
        mode = done.json()["modes"][0]
        self.assertEqual(mode["stopped_blocks"], 1)
        self.assertEqual(mode["findings"][0]["kind"], "deadlock")
        self.assertIn("wait_for_places", mode["findings"][0]["text"])

    def test_bad_input(self):
        self.fails(2, ["--mode", "fast"], "check", *SM80, "--mode", "fast")
        self.fails(2, ["--target"], "check", "--head-dim", "64")
        self.fails(2, ["--max-steps"], "check", *SM80, "--max-steps", "0")


class Supports(CliTest):
    def test_yes(self):
        self.assertEqual(self.ok("supports", *SM80).out, "yes\n")
        self.assertEqual(self.ok("supports", *SM80, "--json").json(), {"supported": True, "reasons": []})

    def test_every_reason(self):
        arguments = ["supports", "--head-dim", "100", "--head-dim-v", "300", "--dropout", "1", "--target", "sm_80"]
        result = self.run_cli(*arguments)
        self.assertEqual(result.code, 3, str(result))
        for word in ["no\n", "head_dim is 100", "head_dim_v is 300", "dropout is 1"]:
            self.assertIn(word, result.out)
        report = self.run_cli(*arguments, "--json")
        self.assertEqual(report.code, 3)
        self.assertEqual(len(report.json()["reasons"]), 3)


class Emit(CliTest):
    def test_cuda_text(self):
        text = self.ok("emit", *SM80).out
        self.assertTrue(text.startswith("// Attention forward for sm_80: bf16"))
        self.assertIn("fw_forward", text)
        self.assertEqual(text, self.ok("emit", *SM80).out, "the same bytes every time")

    def test_the_banner_regenerates_it(self):
        for more in [[], ["--mask", "window:64,0"], ["--mask", "blocks", "--dtype", "fp16"], ["--dropout", "0.1"],
                     ["--head-dim-v", "128"], ["--target", "sm_90a", "--softmax-scale", "0.2"]]:
            arguments = dict(zip(SM80[::2], SM80[1::2])) | dict(zip(more[::2], more[1::2]))
            text = self.ok("emit", *[word for pair in arguments.items() for word in pair]).out
            command = re.search(r"Regenerate: flashwright (.*(?:\n//     .*)*)", text).group(1).replace("\n//", " ")
            self.assertEqual(self.ok(*command.split()).out, text)

    def test_output_file(self):
        result = self.ok("emit", *SM80, "-o", "k.cu")
        with open(self.path("k.cu"), encoding="utf-8") as file:
            self.assertEqual(file.read(), self.ok("emit", *SM80).out)
        self.assertIn("k.cu", result.out)
        self.assertEqual(os.listdir(self.folder).count("k.cu"), 1)
        self.assertFalse([name for name in os.listdir(self.folder) if name.endswith(".new")])

    def test_masks_and_targets(self):
        for mask in ["none", "causal", "window:128,0", "window:-1,16", "blocks"]:
            for target in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"]:
                text = self.ok("emit", "--head-dim", "64", "--mask", mask, "--target", target).out
                self.assertIn(target, text.split("\n", 1)[0])

    def test_config(self):
        config = {"dtype": "bf16", "head_dim": 64, "mask": "causal", "target": "sm_80"}
        expected = self.ok("emit", *SM80).out
        with open(self.path("config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        self.assertEqual(self.ok("emit", "--config", json.dumps(config)).out, expected)
        self.assertEqual(self.ok("emit", "--config", "config.json").out, expected)
        self.assertEqual(self.ok("emit", "--config", "-", stdin=json.dumps(config)).out, expected)
        self.assertEqual(self.ok("emit", "--config", json.dumps({**config, "head_dim": 128}), "--head-dim", "64").out,
                         expected, "flags go before --config")

    def test_json(self):
        report = self.ok("emit", *SM80, "--json").json()
        self.assertEqual(report["text"], self.ok("emit", *SM80).out)
        self.assertEqual(report["config"]["mask"], "causal")
        report = self.ok("emit", *SM80, "-o", "k.cu", "--json").json()
        self.assertEqual(report["file"], "k.cu")
        self.assertNotIn("text", report)

    @needs_cpu
    def test_cpu_text(self):
        self.assertIn("define", self.ok("emit", "--head-dim", "64", "--target", "cpu").out)

    def test_needs_neither_compiler_nor_driver_nor_plugin(self):
        env = self.environment(FLASHWRIGHT_NVRTC="/nowhere", FLASHWRIGHT_CUDA="/nowhere",
                               FLASHWRIGHT_CPU_PLUGIN="/nowhere")
        self.assertEqual(self.ok("emit", *SM80, env=env).out, self.ok("emit", *SM80).out)

    def test_pipes(self):
        shell = f"set -o pipefail; {BINARY} emit {' '.join(SM80)} | cat | head -n 1"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=self.environment())
        self.assertTrue(done.stdout.startswith("// Attention"), done.stderr)
        self.assertEqual(done.stderr, "")

    def test_full_output(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            process = self.start("emit", *SM80, stdout=full)
            _, err = process.communicate()
        self.assertEqual(process.returncode, 8, err)
        self.assertIn("standard output: cannot write: No space left on device", err)


class Compile(CliTest):
    @needs_nvrtc
    def test_resources_and_store(self):
        text = self.ok("compile", *SM80, "-o", "k.cubin").out
        for word in ["registers", "spills", "shared memory", "compiled in", "NVRTC", "warnings  none"]:
            self.assertIn(word, text)
        with open(self.path("k.cubin"), "rb") as file:
            self.assertEqual(file.read(4), b"\x7fELF")
        report = self.ok("compile", *SM80, "--json").json()
        self.assertTrue(report["from_store"])
        self.assertGreater(report["resources"]["registers"], 16)
        self.assertEqual(report["resources"]["spill_bytes"], 0)
        self.assertEqual(report["warnings"], [])
        self.assertEqual(report["bytes"], os.path.getsize(self.path("k.cubin")))

    @needs_cpu
    def test_cpu(self):
        report = self.ok("compile", "--head-dim", "64", "--target", "cpu", "-o", "k.o", "--json").json()
        self.assertEqual(report["kind"], "object")
        self.assertEqual(report["bytes"], os.path.getsize(self.path("k.o")))
        self.assertIn("vector spills", self.ok("compile", "--head-dim", "64", "--target", "cpu").out)

    @needs_cpu
    def test_dump(self):
        env = self.environment(FLASHWRIGHT_DUMP_DIR="dumps/here")
        arguments = ["compile", "--head-dim", "64", "--dtype", "fp32", "--target", "cpu", "--json"]
        report = self.ok(*arguments, env=env).json()
        files = sorted(os.listdir(self.path("dumps/here")))
        stem = f"-{report['schedule']}-{report['key'][:12]}"
        endings = [name[name.index(stem) + len(stem):] for name in files]
        self.assertEqual([ending for ending in endings if ending != ".log"], [".ll", ".o"])
        self.assertTrue(files[0].startswith("forward_fp32_d64_none_cpu_"))
        self.assertEqual(os.path.getsize(self.path(f"dumps/here/{files[-1]}")), report["bytes"])
        self.assertTrue(self.ok(*arguments, env=self.environment(FLASHWRIGHT_DUMP_DIR="none")).json()["from_store"])
        self.assertFalse(os.path.exists(self.path("none")), "nothing is compiled, nothing is dumped")
        with open(self.path("file"), "w", encoding="utf-8"):
            pass
        result = self.ok(*arguments, "--cache-dir", ":memory:", env=self.environment(FLASHWRIGHT_DUMP_DIR="file"))
        self.assertEqual(result.err.count("FLASHWRIGHT_DUMP_DIR"), 1, str(result))
        self.assertEqual(result.err.count("\n"), 1, str(result))

    def test_missing_parts(self):
        self.fails(6, ["NVRTC"], "compile", *SM80, env=self.environment(FLASHWRIGHT_NVRTC="/nowhere/nvrtc.so"))
        self.fails(6, ["libflashwright-cpu.so", "/nowhere/plugin.so"], "compile", "--head-dim", "64", "--target", "cpu",
                   env=self.environment(FLASHWRIGHT_CPU_PLUGIN="/nowhere/plugin.so"))
        self.assertFalse(os.path.exists(self.path("k.cubin")))


class Explain(CliTest):
    def test_a_kernel_that_nobody_tuned(self):
        shape = ["--batch", "2", "--heads", "8", "--heads-kv", "2", "--seq", "1000"]
        text = self.ok("explain", *SM80, *shape).out
        for word in ["b2 h8/2 q1000 kv1000", "family sm80", "default", "Alternatives", "shared memory", "not present"]:
            self.assertIn(word, text)
        report = self.ok("explain", *SM80, *shape, "--json").json()
        self.assertEqual(report["chosen_by"], "default")
        self.assertGreater(len(report["alternatives"]), 3)
        self.assertFalse(report["device"]["present"])

    def test_what_a_kernel_moves(self):
        shape = ["--batch", "1", "--heads", "1", "--seq", "1024"]
        for direction, tensors in [("forward", 4), ("backward", 8)]:
            for target in ["sm_80", "sm_90a"]:
                flags = ["--head-dim", "64", "--target", target, "--direction", direction, *shape]
                report = self.ok("explain", *flags, "--json").json()
                self.assertEqual(report["tensor_bytes"], 1024 * (tensors * 2 * 64 + 4))
                self.assertGreater(report["traffic_bytes"], report["tensor_bytes"])
                self.assertIn("to and from its tiles; its tensors once are", self.ok("explain", *flags).out)
        windows = self.ok("explain", "--head-dim", "64", "--target", "sm_80", "--mask", "window:9,9", "--json").json()
        self.assertNotIn("traffic_bytes", windows)

    def test_the_device_that_is_assumed(self):
        text = self.ok("explain", "--head-dim", "64", "--target", "sm_86").out
        self.assertIn("device    an sm_86 GPU (assumed) (sm_86), not present; --device names another", text)
        self.assertNotIn("A100", text)
        text = self.ok("explain", "--head-dim", "64", "--target", "sm_90a").out
        self.assertIn("NVIDIA H100 SXM (sm_90a)", text)
        self.assertIn("no multiple of 16 bytes", text)  # which launches are slow
        self.assertNotIn("slow", self.ok("explain", *SM80, "--json").json())

    def test_another_device(self):
        head = ["--head-dim", "64"]
        for target in [[], ["--target", "sm_90a"], ["--target", "cuda"]]:
            report = self.ok("explain", *head, *target, "--device", "h200", "--json").json()
            self.assertEqual(report["device"]["target"], "sm_90a")
            self.assertIn("H200", report["device"]["name"])
        self.assertIn("for sm_89: bf16", self.ok("emit", *head, "--device", "rtx4090").out)
        self.assertEqual(self.ok("emit", *head, "--device", "rtx4090", "--json").json()["config"]["target"], "sm_89")
        self.assertEqual(self.ok("supports", *head, "--device", "l40s").out, "yes\n")
        small = {"name": "small", "target": "sm_80", "sm_count": 2, "clock_ghz": 1, "l2_bytes": 1 << 20,
                 "smem_per_block_bytes": 16384, "smem_per_sm_bytes": 17408}
        with open(self.path("small.json"), "w", encoding="utf-8") as file:
            json.dump(small, file)
        one, two = (self.ok("explain", *head, "--device", device, "--json").json() for device in ["small.json", "a100"])
        self.assertEqual(one["device"]["name"], "small")
        self.assertNotEqual(one["schedule"], two["schedule"], "a small device gets a smaller tile")
        schedule = ["--schedule", two["schedule"]]
        self.assertIn("no\n", self.run_cli("supports", *head, *schedule, "--device", "small.json").out)

    def test_a_device_that_is_wrong(self):
        for command in ["emit", "compile", "explain", "supports", "tune", "bench"]:
            arguments = [command, "--head-dim", "64"]
            self.fails(2, ["device: 'h300' is unknown; known: a100, "], *arguments, "--device", "h300")
            self.fails(2, ["--device", "missing.json", "a file with a device profile"], *arguments, "--device",
                       "missing.json")
            if command != "supports":
                self.fails(2, ["target: given 'sm_80'; expected sm_90a, which the device NVIDIA H200 SXM is"],
                           *arguments, "--device", "h200", "--target", "sm_80")
        result = self.run_cli("supports", "--head-dim", "64", "--device", "h200", "--target", "sm_80")
        self.assertEqual((result.code, "expected sm_90a" in result.out), (3, True), str(result))
        with open(self.path("list.json"), "w", encoding="utf-8") as file:
            file.write("[1]")
        self.fails(2, ["device: given [1]; expected the name of a known device"], "explain", "--head-dim", "64",
                   "--device", "list.json")
        self.fails(6, ["no device for 'sm_89' is present of the class of NVIDIA L40S"], "bench", "--head-dim", "64",
                   "--device", "l40s")

    def test_a_pinned_schedule(self):
        schedule = self.ok("explain", *SM80, "--json").json()["schedule"]
        report = self.ok("explain", *SM80, "--schedule", schedule, "--json").json()
        self.assertEqual((report["chosen_by"], report["schedule"]), ("config", schedule))


class BadInput(CliTest):
    def test_messages(self):
        emit = ["emit", "--target", "sm_80"]
        cases = [
            (2, ["unknown field 'head_dims'", "known: "], [*emit, "--config", '{"head_dims": 64}']),
            (2, ["not JSON"], [*emit, "--config", '{"head_dim": }']),
            (2, ["--config", "cannot read the file 'missing.json'"], [*emit, "--config", "missing.json"]),
            (2, ["dtype", "fp8", "fp16, bf16, fp32"], [*emit, "--head-dim", "64", "--dtype", "fp8"]),
            (2, ["head_dim is 12", "8..256 in steps of 8"], [*emit, "--head-dim", "12"]),
            (2, ["head_dim is 0"], [*emit]),
            (2, ["--head-dim", "'many'", "whole number"], [*emit, "--head-dim", "many"]),
            (2, ["mask", "'diagonal'", "none, causal, window:LEFT,RIGHT, blocks"],
             [*emit, "--head-dim", "64", "--mask", "diagonal"]),
            (2, ["window:3"], [*emit, "--head-dim", "64", "--mask", "window:3"]),
            (2, ["side -2"], [*emit, "--head-dim", "64", "--mask", "window:-2,0"]),
            (2, ["--mask", "blocks:"], [*emit, "--head-dim", "64", "--mask", "blocks:"]),
            (2, ["dropout is 1", "from 0 to below 1"], [*emit, "--head-dim", "64", "--dropout", "1.0"]),
            (2, ["dropout is -0.1"], [*emit, "--head-dim", "64", "--dropout", "-0.1"]),
            (2, ["dropout is nan"], [*emit, "--head-dim", "64", "--dropout", "nan"]),
            (2, ["--dropout", "'often'", "a number"], [*emit, "--head-dim", "64", "--dropout", "often"]),
            (2, ["softmax_scale is inf", "finite"], [*emit, "--head-dim", "64", "--softmax-scale", "inf"]),
            (2, ["softmax_scale is nan"], [*emit, "--head-dim", "64", "--softmax-scale", "nan"]),
            (2, ["--seed", "'-1'"], [*emit, "--head-dim", "64", "--seed", "-1"]),
            (2, ["target: 'sm_12'", "known: cpu"], ["emit", "--head-dim", "64", "--target", "sm_12"]),
            (2, ["schedule", "'x7'"], [*emit, "--head-dim", "64", "--schedule", "x7"]),
            (3, ["schedule: q1024"], [*emit, "--head-dim", "64", "--schedule", "q1024.kv64.w4.st2.b2"]),
            (2, ["--batch", "'0'", "from 1"], [*emit, "--head-dim", "64", "--batch", "0"]),
            (2, ["heads"], [*emit, "--head-dim", "64", "--heads", "6", "--heads-kv", "4"]),
            (2, ["--seq", "either"], [*emit, "--head-dim", "64", "--seq", "6", "--seq-q", "4"]),
            (2, ["--budget", "'soon'", "60s"], ["tune", "--head-dim", "64", "--budget", "soon"]),
            (2, ["device: 'abacus'", "h200"], ["tune", "--head-dim", "64", "--device", "abacus"]),
            (2, ["--device", "none.json"], ["tune", "--head-dim", "64", "--device", "none.json"]),
            (2, ["target", "sm_80", "sm_90a"], ["tune", "--head-dim", "64", "--device", "h100", "--target", "sm_80"]),
            (2, ["--against", "'torch'", "unfused"], ["bench", "--head-dim", "64", "--against", "torch"]),
            (2, ["--jobs", "'0'"], [*emit, "--head-dim", "64", "--jobs", "0"]),
            (2, ["FLASHWRIGHT_EFFORT", "'max'"], [*emit, "--head-dim", "64", "EFFORT=max"]),
            (8, ["-o", "no/such/folder/k.cu"], [*emit, "--head-dim", "64", "-o", "no/such/folder/k.cu"]),
            (8, ["-o", "is a folder"], [*emit, "--head-dim", "64", "-o", "."]),
        ]
        for code, words, arguments in cases:
            env = self.environment()
            if "EFFORT=max" in arguments:
                env = self.environment(FLASHWRIGHT_EFFORT="max")
                arguments = [a for a in arguments if a != "EFFORT=max"]
            with self.subTest(arguments=arguments):
                self.fails(code, words, *arguments, env=env)
                result = self.run_cli(*arguments, "--json", env=env)
                self.assertEqual(result.code, code)
                error = result.json()["error"]
                self.assertEqual(error["code"], code)
                for word in words:
                    self.assertIn(word, error["message"])
                self.assertEqual(result.err, "")

    def test_no_device(self):
        env = self.environment(FLASHWRIGHT_CUDA="/nowhere/libcuda.so")
        self.fails(6, ["/nowhere/libcuda.so"], "bench", "--head-dim", "64", "--target", "cuda", env=env)
        self.fails(6, ["sm_90a", "present"], "bench", "--head-dim", "64", "--target", "sm_90a", env=env)

    def test_huge_config(self):
        with open(self.path("big.json"), "w", encoding="utf-8") as file:
            file.write(" " * 3_000_000)
        self.fails(2, ["--config", "at most"], "emit", "--config", "big.json")


if __name__ == "__main__":
    main()
