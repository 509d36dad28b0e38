"""flashwright run: numbers, element types, masks, and every file that must be refused."""

import math
import os
import resource
import shutil
import signal
import time
import unittest

from support import (MINILM, CliTest, attention, bfloat_bits, float_of_bfloat, header_bytes, main, needs_cpu, noise,
                     read_npy, write_npy)

HALF = 2**-11


@needs_cpu
class Gradients(CliTest):
    """--direction backward, against differences of the outputs."""

    SHAPE = (1, 6, 2, 8)

    def setUp(self):
        super().setUp()
        count = 6 * 2 * 8
        self.arrays = {name: noise(count, seed) for seed, name in enumerate(["q", "k", "v", "do"])}
        for name, values in self.arrays.items():
            write_npy(self.path(f"{name}.npy"), "<f4", self.SHAPE, values)

    FILES = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--target", "cpu", "--mask", "causal"]
    BACKWARD = [*FILES, "--direction", "backward", "--do", "do.npy"]

    def loss(self, **changes):
        for name, values in changes.items():
            write_npy(self.path(f"{name}.npy"), "<f4", self.SHAPE, values)
        self.ok(*self.FILES, "-o", "o.npy")
        return sum(a * b for a, b in zip(read_npy(self.path("o.npy"))[2], self.arrays["do"]))

    def test_differences_of_the_output(self):
        text = self.ok(*self.BACKWARD, "--dq", "dq.npy", "--dk", "dk.npy", "--dv", "dv.npy", "--check").out
        for word in ["backward fp32 d8 causal", "check     passed; dk: largest error", "wrote     dq.npy (1, 6, 2, 8)"]:
            self.assertIn(word, text)
        step = 2**-6
        for name in ["q", "k", "v"]:
            _, shape, gradient = read_npy(self.path(f"d{name}.npy"))
            self.assertEqual(shape, self.SHAPE)
            for place in [17, 60]:
                moved = [list(self.arrays[name]) for _ in range(2)]
                moved[0][place] += step
                moved[1][place] -= step
                above, below = (self.loss(**{name: values}) for values in moved)
                self.loss(**{name: self.arrays[name]})
                self.assertAlmostEqual(gradient[place], (above - below) / (2 * step), delta=2e-4)

    def test_outputs_of_a_forward_run_serve(self):
        self.ok(*self.BACKWARD, "--dq", "computed.npy")
        self.ok(*self.FILES, "-o", "o.npy", "--lse", "lse.npy")
        report = self.ok(*self.BACKWARD, "--o", "o.npy", "--lse", "lse.npy", "--dq", "given.npy", "--json").json()
        self.assertNotIn("forward", report)
        gradients = [word for name in ["dq", "dk", "dv"] for word in [f"--{name}", f"{name}.npy"]]
        whole = self.ok(*self.BACKWARD, *gradients, "--json").json()
        self.assertEqual(2 * report["workspace_bytes"], whole["workspace_bytes"], "copied keys and values, no sums")
        self.assertEqual(read_npy(self.path("given.npy")), read_npy(self.path("computed.npy")))
        self.assertIn("forward", self.ok(*self.BACKWARD, "--json").json())

    def test_gradient_of_the_sums(self):
        write_npy(self.path("one.npy"), "<f4", (1, 2, 6), [1.0] * 12)
        write_npy(self.path("do.npy"), "<f4", self.SHAPE, [0.0] * 96)
        self.ok(*self.BACKWARD, "--d-lse", "one.npy", "--dv", "dv.npy", "--dk", "dk.npy", "--check")
        self.assertEqual(set(read_npy(self.path("dv.npy"))[2]), {0.0})
        self.assertNotEqual(set(read_npy(self.path("dk.npy"))[2]), {0.0})

    def test_other_types_and_options(self):
        for flags in [["--dtype", "bf16"], ["--dtype", "fp16", "--dropout", "0.3"], ["--softcap", "2"],
                      ["--deterministic"], ["--schedule", "q16.kv32.tk2"]]:
            self.assertTrue(self.ok(*self.BACKWARD, *flags, "--check", "--json").json()["check"]["passed"], flags)
        write_npy(self.path("mask.npy"), "|b1", (6, 6), [(i * 5 + j) % 3 != 0 for i in range(6) for j in range(6)])
        blocks = [flag if flag != "causal" else "blocks:mask.npy" for flag in self.BACKWARD]
        self.ok(*blocks, "--block-size", "2,4", "--check")

    def test_what_does_not_belong_is_refused(self):
        write_npy(self.path("short.npy"), "<f4", (1, 5, 2, 8), [0.0] * 80)
        write_npy(self.path("flat.npy"), "<f4", (12,), [0.0] * 12)
        for words, arguments in [
                (["--do", "the gradient of the output"], [*self.FILES, "--direction", "backward"]),
                (["-o", "--o is read"], [*self.BACKWARD, "-o", "o.npy"]),
                (["--lse", "the other one was given"], [*self.BACKWARD, "--o", "do.npy"]),
                (["--o", "the other one was given"], [*self.BACKWARD, "--lse", "flat.npy"]),
                (["--d-lse", "(12)", "(batch, heads, seq)"], [*self.BACKWARD, "--d-lse", "flat.npy"]),
                (["--dv", "another file than that of --dq"], [*self.BACKWARD, "--dq", "x.npy", "--dv", "x.npy"]),
                (["--dq", "direction is forward"], [*self.FILES, "--dq", "dq.npy"]),
                (["--do", "direction is forward"], [*self.FILES, "--do", "do.npy"]),
                (["d_o", "(1, 5, 2, 8)", "seq_q of q = 6"], [*self.BACKWARD[:-2], "--do", "short.npy"]),
                (["direction is 'sideways'", "forward, backward"], [*self.FILES, "--direction", "sideways"])]:
            with self.subTest(words=words):
                self.fails(2, words, *arguments)


@needs_cpu
class RealLayer(CliTest):
    """The arrays of one attention layer of a language model."""

    FILES = ["run", "--q", f"{MINILM}/q.npy", "--k", f"{MINILM}/k.npy", "--v", f"{MINILM}/v.npy", "--target", "cpu"]

    def test_expected_values(self):
        text = self.ok(*self.FILES, "-o", "o.npy", "--lse", "lse.npy", "--check").out
        for word in ["forward fp32 d32 none", "from", "the compiler", "batch 2, heads 12", "check     passed",
                     "wrote     o.npy (2, 480, 12, 32) '<f4'", "wrote     lse.npy (2, 12, 480) '<f4'"]:
            self.assertIn(word, text)
        _, shape, out = read_npy(self.path("o.npy"))
        self.assertEqual(shape, (2, 480, 12, 32))
        _, rows, expected = read_npy(f"{MINILM}/out_every32.npy")
        row = 12 * 32
        worst = max(abs(out[((b * 480 + 32 * i) * row) + j] - expected[(b * rows[1] + i) * row + j])
                    for b in range(2) for i in range(rows[1]) for j in range(row))
        self.assertLess(worst, 2e-5)
        _, _, lse = read_npy(self.path("lse.npy"))
        _, _, expected = read_npy(f"{MINILM}/lse.npy")
        self.assertLess(max(abs(a - b) for a, b in zip(lse, expected)), 2e-5)

    def test_second_run_comes_from_the_store(self):
        self.assertFalse(self.ok(*self.FILES, "--json").json()["kernel"]["from_store"])
        report = self.ok(*self.FILES, "--json", "-o", "o.npy").json()
        self.assertTrue(report["kernel"]["from_store"])
        self.assertEqual(report["outputs"], ["o.npy"])
        for field in ["time_us", "get_kernel_us", "start_us", "workspace_bytes"]:
            self.assertIn(field, report)
        self.assertIn("the store in", self.ok(*self.FILES).out)

    def test_conversion_is_announced(self):
        for dtype in ["fp16", "bf16"]:
            result = self.ok(*self.FILES, "--dtype", dtype, "--check", "-o", "o.npy")
            self.assertIn(f"q.npy holds fp32, converted to {dtype}", result.err)
            self.assertIn(f"forward {dtype} d32", result.out)
            self.assertEqual(read_npy(self.path("o.npy"))[0], "<f4", "who gave fp32 gets it back")
            report = self.ok(*self.FILES, "--dtype", dtype, "--check", "--json")
            self.assertEqual(report.err, "")
            self.assertEqual(len(report.json()["notes"]), 3)
            self.assertTrue(report.json()["check"]["passed"])

    def test_efforts(self):
        self.fails(4, ["cached"], *self.FILES, "--effort", "cached")
        self.fails(4, ["loaded"], *self.FILES, "--effort", "loaded")
        self.fails(2, ["--effort", "'hard'", "loaded, cached, compile, tune"], *self.FILES, "--effort", "hard")
        self.fails(4, ["cached"], *self.FILES, env=self.environment(FLASHWRIGHT_EFFORT="cached"))
        self.fails(4, ["is not in the store :memory:, and"], *self.FILES, "--effort", "cached",
                   "--cache-dir", ":memory:")
        self.ok(*self.FILES)
        self.ok(*self.FILES, "--effort", "cached")


@needs_cpu
class Numbers(CliTest):
    SHAPE = (2, 5, 4, 8, 7, 2, 16)  # batch, seq_q, heads, dim, seq_kv, heads_kv, dim_v

    def setUp(self):
        super().setUp()
        b, sq, h, d, skv, hk, dv = self.SHAPE
        self.shapes = [(b, sq, h, d), (b, skv, hk, d), (b, skv, hk, dv)]
        self.values = [noise(math.prod(shape), i + 1) for i, shape in enumerate(self.shapes)]

    def write(self, descr="<f4", convert=lambda values: values):
        for name, shape, values in zip("qkv", self.shapes, self.values):
            write_npy(self.path(f"{name}.npy"), descr, shape, convert(values))

    def run_files(self, *arguments):
        return self.ok("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--target", "cpu", "-o", "o.npy",
                       "--lse", "lse.npy", *arguments)

    def compare(self, tolerance=1e-5, visible=None, scale=None, of=lambda x: x, change=None):
        out, lse = attention(*self.values, self.SHAPE, visible, scale, change)
        _, _, got = read_npy(self.path("o.npy"))
        self.assertLess(max(abs(of(a) - b) for a, b in zip(got, out)), tolerance)
        _, _, got = read_npy(self.path("lse.npy"))
        for a, b in zip(got, lse):
            self.assertTrue(a == b or abs(a - b) < 1e-5, (a, b))

    def test_fp32_and_dims(self):
        self.write()
        self.run_files("--check")
        self.compare()
        self.run_files("--softmax-scale", "0.5")
        self.compare(scale=0.5)

    def test_fp16(self):
        self.write("<f2")
        self.assertIn("forward fp16", self.run_files("--check").out)
        self.assertEqual(read_npy(self.path("o.npy"))[0], "<f2")
        self.compare(4 * HALF)
        self.run_files("--dtype", "fp32")
        self.assertEqual(read_npy(self.path("o.npy"))[0], "<f4")
        self.compare()

    def test_bf16_bits(self):
        for descr in ["<u2", "|V2"]:
            self.write(descr, bfloat_bits)
            self.run_files("--dtype", "bf16", "--check")
            self.assertEqual(read_npy(self.path("o.npy"))[0], "<u2")
            self.compare(32 * HALF, of=float_of_bfloat)
            self.fails(2, [f"'{descr}'", "--dtype bf16"], "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy")

    def test_values_that_are_not_finite(self):
        """Where a mask hides them they reach other rows; a failed check says so."""
        self.values[2][-1] = math.nan
        self.write()
        result = self.run_cli("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--target", "cpu", "--mask",
                              "causal", "--check")
        self.assertEqual(result.code, 9, str(result))
        text = " ".join(result.out.split())
        self.assertIn("check FAILED: NaN or infinity where the reference has none", text)
        self.assertIn("; v holds NaN or infinity: values have to be finite also where the mask hides their keys", text)

    def test_masks(self):
        self.write()
        self.run_files("--mask", "causal")
        self.compare(visible=lambda b, h, i, j: j <= i + 2)  # bottom-right: seq_kv - seq_q = 2
        self.run_files("--mask", "causal", "--q-position", "0")
        self.compare(visible=lambda b, h, i, j: j <= i)
        self.run_files("--mask", "causal", "--q-position", "-3")
        self.compare(visible=lambda b, h, i, j: j <= i - 3)  # the first rows see nothing
        self.run_files("--mask", "window:1,2")
        self.compare(visible=lambda b, h, i, j: i + 1 <= j <= i + 4)

    def test_softcap_and_slopes(self):
        self.write()
        b, _, heads = self.SHAPE[:3]
        self.run_files("--softcap", "0.5", "--check")
        self.compare(change=lambda s, bb, h, i, j: 0.5 * math.tanh(s / 0.5))
        for shape in [(heads,), (b, heads)]:
            slopes = noise(math.prod(shape), 8)
            write_npy(self.path("s.npy"), "<f4", shape, slopes)
            self.run_files("--alibi-slopes", "s.npy", "--check")  # bottom-right: seq_kv - seq_q = 2
            self.compare(change=lambda s, bb, h, i, j: s + slopes[(bb * heads + h) % len(slopes)] * (j - i - 2))
        files = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--target", "cpu"]
        self.fails(2, ["alibi_slopes", "given none"], *files, "--alibi")
        self.fails(2, ["softcap is 0", "1e-18"], *files, "--softcap", "0")
        write_npy(self.path("s.npy"), "<f4", (heads + 1,), [0] * (heads + 1))
        self.fails(2, ["alibi_slopes", "(5)", "(4) or (2, 4)"], *files, "--alibi-slopes", "s.npy")
        write_npy(self.path("s.npy"), "<f4", (1, b, heads), [0] * (b * heads))
        self.fails(2, ["--alibi-slopes", "(heads) or (batch, heads)"], *files, "--alibi-slopes", "s.npy")

    def test_block_masks(self):
        self.write()
        b, sq, h, _, skv, _, _ = self.SHAPE
        for descr, batch, heads in [("|b1", 1, 1), ("|u1", b, h), ("|u1", b, 1), ("|b1", 1, h)]:
            keep = [int(x > 0) for x in noise(batch * heads * sq * skv, 9)]
            shape = (sq, skv) if (batch, heads) == (1, 1) else (batch, heads, sq, skv)
            write_npy(self.path("m.npy"), descr, shape, keep)
            for size in ["128,128", "2,3", "1,1", "64,32"]:
                self.run_files("--mask", "blocks:m.npy", "--block-size", size, "--check")
                self.compare(visible=lambda bb, hh, i, j: keep[((bb % batch * heads + hh % heads) * sq + i) * skv + j])

    def test_dropout_is_a_function_of_the_seed(self):
        self.write()
        outputs = []
        for seed, offset in [("7", "0"), ("7", "0"), ("8", "0"), ("7", "1")]:
            self.run_files("--dropout", "0.4", "--seed", seed, "--offset", offset, "--check")
            outputs.append(read_npy(self.path("o.npy"))[2])
        self.assertEqual(outputs[0], outputs[1])
        self.assertNotEqual(outputs[0], outputs[2])
        self.assertNotEqual(outputs[0], outputs[3])

    def test_nothing_to_see(self):
        self.values = [self.values[0], [], []]
        self.shapes = [self.shapes[0], (2, 0, 2, 8), (2, 0, 2, 16)]
        self.write()
        self.run_files("--check")
        self.assertEqual(set(read_npy(self.path("o.npy"))[2]), {0.0})
        self.assertEqual(set(read_npy(self.path("lse.npy"))[2]), {-math.inf})

    def test_nothing_to_compute(self):
        self.values = [[], self.values[1], self.values[2]]
        self.shapes = [(2, 0, 4, 8), self.shapes[1], self.shapes[2]]
        self.write()
        self.run_files()
        self.assertEqual(read_npy(self.path("o.npy"))[1], (2, 0, 4, 16))

    def test_a_scalar_of_time(self):
        self.write()
        self.assertIn("median of 5", self.run_files("--repeat", "5").out)
        self.fails(2, ["--repeat", "'0'"], "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--repeat", "0")

    def test_shape_flags_agree_with_the_files(self):
        self.write()
        self.run_files("--batch", "2", "--heads", "4", "--heads-kv", "2", "--seq-q", "5", "--seq-kv", "7", "--head-dim",
                       "8", "--head-dim-v", "16")
        for flag, value, word in [("--batch", "3", "2"), ("--heads", "2", "4"), ("--heads-kv", "4", "2"),
                                  ("--seq", "5", "7"), ("--seq-q", "7", "5"), ("--seq-kv", "5", "7")]:
            self.fails(2, [flag, f"'{value}'", f"expected {word}"], "run", "--q", "q.npy", "--k", "k.npy", "--v",
                       "v.npy", flag, value)
        for flag, value, word in [("--head-dim", "16", "8"), ("--head-dim-v", "8", "16")]:
            self.fails(2, [flag[2:].replace("-", "_"), f"given {value}", f"has {word}"], "run", "--q", "q.npy", "--k",
                       "k.npy", "--v", "v.npy", flag, value)

    def test_shapes_that_do_not_fit(self):
        self.write()
        base = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--target", "cpu"]
        for names, shape, words in [("kv", (2, 7, 3, 8), ["k", "3 kv heads", "divisible"]),
                                    ("k", (1, 7, 2, 8), ["k", "batch of q = 2"]),
                                    ("k", (2, 6, 2, 8), ["v", "seq_kv of k = 6"]),
                                    ("k", (2, 7, 2, 16), ["k", "head_dim = 8"]),
                                    ("v", (2, 7, 4, 16), ["v", "heads of k = 2"]),
                                    ("v", (2, 7, 2, 12), ["head_dim_v is 12"])]:
            self.write()
            for name in names:
                write_npy(self.path(f"{name}.npy"), "<f4", shape, noise(math.prod(shape), 5))
            with self.subTest(names=names, shape=shape):
                self.fails(2, words, *base, "-o", "never.npy")
                self.assertFalse(os.path.exists(self.path("never.npy")))

    def test_block_lists_that_do_not_fit(self):
        self.write()
        base = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--target", "cpu", "--mask"]
        for shape in [(7, 5), (5, 8), (3, 1, 5, 7), (2, 3, 5, 7), (5,), (2, 5, 7)]:
            write_npy(self.path("m.npy"), "|u1", shape, [1] * math.prod(shape))
            self.fails(2, ["--mask m.npy", "expected (5, 7) or (1 or 2, 1 or 4, 5, 7)"], *base, "blocks:m.npy")
        write_npy(self.path("m.npy"), "<f4", (5, 7), [1] * 35)
        self.fails(2, ["--mask m.npy", "'<f4'", "bool"], *base, "blocks:m.npy")
        self.fails(2, ["--mask", "cannot open"], *base, "blocks:missing.npy")
        self.fails(2, ["--mask", "blocks:FILE"], *base, "blocks")
        write_npy(self.path("m.npy"), "|b1", (5, 7), [1] * 35)
        for size in ["0,4", "4", "4,x", "4,4,4"]:
            self.fails(2, ["--block-size"], *base, "blocks:m.npy", "--block-size", size)

    def test_mixed_element_types(self):
        self.write()
        write_npy(self.path("v.npy"), "<f2", self.shapes[2], self.values[2])
        base = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--target", "cpu"]
        self.fails(2, ["--q q.npy is fp32", "--v v.npy is fp16", "--dtype"], *base)
        self.run_files("--dtype", "fp32")
        self.compare()


class BadFiles(CliTest):
    """Files that are refused before anything else happens, so that no backend is needed."""

    def setUp(self):
        super().setUp()
        self.shape = (1, 2, 1, 8)
        for name in "kv":
            write_npy(self.path(f"{name}.npy"), "<f4", self.shape, [0.5] * 16)

    def refuse(self, data, *words, code=2):
        with open(self.path("q.npy"), "wb") as file:
            file.write(data)
        result = self.fails(code, ["--q", *words], "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "-o", "o.npy",
                            "--lse", "lse.npy")
        self.assertFalse(os.path.exists(self.path("o.npy")) or os.path.exists(self.path("lse.npy")), str(result))

    def test_contents(self):
        good, data = header_bytes("<f4", self.shape), bytes(64)
        self.refuse(b"", "empty")
        self.refuse(b"PK\x03\x04 a zip file", "no .npy file")
        self.refuse(b"\x93NUMPY", "no .npy file")
        self.refuse(good + data[:-1], "truncated", "63 bytes", "needs 64")
        self.refuse(good, "truncated", "0 bytes")
        self.refuse(good + data + b"!", "too long", "65 bytes")
        self.refuse(good[:40], "truncated within its header")
        self.refuse(header_bytes(">f4", self.shape) + data, "'>f4'", "big-endian", "'<f4'")
        self.refuse(header_bytes("<f4", self.shape, fortran=True) + data, "Fortran", "ascontiguousarray")
        self.refuse(header_bytes("|O", self.shape) + b"\x80\x04.", "Python objects", "pickle")
        self.refuse(header_bytes("<f8", self.shape) + 2 * data, "'<f8'", "astype('float32')")
        self.refuse(header_bytes("<i4", self.shape) + data, "'<i4'")
        self.refuse(header_bytes("", self.shape, text="{'descr': [('a', '<f4')], 'fortran_order': False, "
                                 "'shape': (1, 2, 1, 8), }") + data, "structured")

    def test_headers(self):
        data = bytes(64)

        def with_text(text):
            return header_bytes("", (), text=text) + data

        self.refuse(header_bytes("<f4", self.shape, version=(4, 0)) + data, "version is 4.0", "1.0, 2.0, 3.0")
        self.refuse(header_bytes("<f4", self.shape, version=(0, 9)) + data, "version is 0.9")
        self.refuse(header_bytes("<f4", self.shape, version=(2, 0))[:8] + b"\xff\xff\xff\x7f", "2147483647 bytes",
                    "at most")
        for text in ["", "{", "{}", "[]", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2, 1, 8)}",
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 1, 8), 'more': 1}",
                     "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 1, 8)}",
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 1, 8)} + exit()",
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2 1 8)}",
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
                     "__import__('os').system('true')"]:
            with self.subTest(text=text):
                self.refuse(with_text(text), "header cannot be read")
        self.refuse(header_bytes("<f4", (2**40, 2**40, 8, 8)), "larger than any memory")
        self.refuse(header_bytes("<f4", (2**20, 2**10, 8, 8)), "truncated")

    def test_rank(self):
        for shape in [(), (64,), (2, 8), (1, 2, 8), (1, 1, 2, 1, 8)]:
            count = math.prod(shape)
            self.refuse(header_bytes("<f4", shape) + bytes(4 * count), "four dimensions: (batch, seq, heads, dim)")

    def test_paths(self):
        self.fails(2, ["--q", "'missing.npy'", "No such file"], "run", "--q", "missing.npy",
                   "--k", "k.npy", "--v", "v.npy")
        result = self.run_cli("run", "--q", ".", "--k", "k.npy", "--v", "v.npy")
        self.assertIn(result.code, (2, 8), str(result))

    @needs_cpu
    def test_later_versions_are_read(self):
        for version in [(2, 0), (3, 0)]:
            write_npy(self.path("q.npy"), "<f4", self.shape, [0.25] * 16, version=version)
            self.ok("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--target", "cpu", "--check")

    @needs_cpu
    def test_a_pipe_is_read(self):
        write_npy(self.path("q.npy"), "<f4", self.shape, [0.25] * 16)
        os.mkfifo(self.path("pipe"))
        process = self.start("run", "--q", "pipe", "--k", "k.npy", "--v", "v.npy", "--target", "cpu", "--check")
        with open(self.path("pipe"), "wb") as pipe, open(self.path("q.npy"), "rb") as file:
            shutil.copyfileobj(file, pipe)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out + err)


@needs_cpu
class Outputs(CliTest):
    """Outputs appear complete or not at all."""

    def setUp(self):
        super().setUp()
        # One key only: next to nothing to compute, but 64 MiB to write. Zeros of a file with holes are enough.
        self.shape = (1, 65536, 8, 32)
        for name, seq in [("q", self.shape[1]), ("k", 1), ("v", 1)]:
            shape = (1, seq, 8, 32)
            header = header_bytes("<f4", shape)
            with open(self.path(f"{name}.npy"), "wb") as file:
                file.write(header)
                file.truncate(len(header) + 4 * math.prod(shape))
        self.size = 128 + 4 * math.prod(self.shape)
        self.command = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--target", "cpu"]

    def leftovers(self):
        return [name for name in os.listdir(self.folder) if ".new" in name]

    def test_kills_in_the_middle(self):
        start = time.monotonic()
        self.ok(*self.command, "-o", "o.npy")
        whole = time.monotonic() - start
        self.assertEqual(os.path.getsize(self.path("o.npy")), self.size)
        found = set()
        for i in range(12):
            for name in ["o.npy", "lse.npy"]:
                if os.path.exists(self.path(name)):
                    os.remove(self.path(name))
            process = self.start(*self.command, "-o", "o.npy", "--lse", "lse.npy")
            time.sleep(whole * (0.2 + 0.07 * i))
            process.send_signal([signal.SIGKILL, signal.SIGTERM, signal.SIGINT][i % 3])
            process.communicate()
            for name, size in [("o.npy", self.size), ("lse.npy", 128 + 4 * 8 * 65536)]:
                if os.path.exists(self.path(name)):
                    self.assertEqual(os.path.getsize(self.path(name)), size)
                    found.add(name)
            if process.returncode not in (0, 130):
                self.assertLessEqual(len(self.leftovers()), 1)
            for name in self.leftovers():
                os.remove(self.path(name))

    def test_an_old_output_stays_until_the_new_one_is_there(self):
        with open(self.path("o.npy"), "w", encoding="utf-8") as file:
            file.write("old")
        process = self.start(*self.command, "-o", "o.npy")
        while process.poll() is None:
            self.assertIn(os.path.getsize(self.path("o.npy")), (3, self.size))
            time.sleep(0.002)
        process.communicate()
        self.assertEqual(os.path.getsize(self.path("o.npy")), self.size)
        self.assertEqual(self.leftovers(), [])

    def test_places_that_cannot_be_written(self):
        self.fails(8, ["-o", "'no/folder/o.npy'", "No such file"], *self.command, "-o", "no/folder/o.npy")
        self.fails(8, ["--lse", "'q.npy/lse.npy'"], *self.command, "-o", "o.npy", "--lse", "q.npy/lse.npy")
        self.assertFalse(os.path.exists(self.path("o.npy")), "neither output without the other")
        self.fails(2, ["--lse", "another file"], *self.command, "-o", "o.npy", "--lse", "o.npy")
        if os.getuid() != 0:
            os.mkdir(self.path("sealed"), 0o500)
            self.fails(8, ["-o", "Permission denied"], *self.command, "-o", "sealed/o.npy")

    def test_full_disk(self):
        self.fails(8, ["-o", "/dev/full", "No space left"], *self.command, "-o", "/dev/full")

    def test_limit_on_the_size_of_files(self):
        process = self.start(*self.command, "-o", "o.npy", env=self.environment(FLASHWRIGHT_CACHE_DIR=":memory:",
                                                                                FLASHWRIGHT_DATA_DIR=":memory:"),
                             preexec_fn=lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                                                 resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))))
        _, err = process.communicate()
        self.assertEqual(process.returncode, 8, err)
        self.assertIn("File too large", err)
        self.assertFalse(os.path.exists(self.path("o.npy")))
        self.assertEqual(self.leftovers(), [])

    def test_symbolic_links_and_devices(self):
        os.mkdir(self.path("elsewhere"))
        os.symlink("elsewhere/real.npy", self.path("link.npy"))
        with open(self.path("elsewhere/real.npy"), "w", encoding="utf-8") as file:
            file.write("old")
        self.ok(*self.command, "-o", "link.npy")
        self.assertTrue(os.path.islink(self.path("link.npy")))
        self.assertEqual(os.path.getsize(self.path("elsewhere/real.npy")), self.size)
        self.ok(*self.command, "-o", "/dev/null")
        self.assertFalse(os.path.isfile("/dev/null"))


if __name__ == "__main__":
    main()
