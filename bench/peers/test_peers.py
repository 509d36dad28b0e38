#!/usr/bin/env python3
"""Checks of the measuring scripts: python3 -m unittest discover -s bench/peers -p 'test_*.py'

Those that need PyTorch run on its CPU backend, and are skipped where it is not installed.
"""

import importlib.util
import io
import contextlib
import json
import pathlib
import tempfile
import unittest

import protocol
import torch_cpu
import torch_cuda

HAVE_TORCH = importlib.util.find_spec("torch") is not None
SMALL = protocol.Shape("float32", 1, 4, 4, 256, 256, 64, 64, True)


class FakeClock:
    """Calls cost what the function says; remembers who was sampled."""

    def __init__(self):
        self.order = []

    def sample(self, fn, calls):
        self.order.append(fn.__name__)
        return sum(fn() for _ in range(calls)) / calls


class Shapes(unittest.TestCase):
    def test_text_round_trip(self):
        for text in protocol.OTHER_SHAPES:
            self.assertEqual(str(protocol.Shape.parse(text)), text)

    def test_short_dtype_and_no_dropout(self):
        shape = protocol.Shape.parse("bf16 b2 heads 8/2 seq 16x32 d 64/128 full")
        self.assertEqual(shape, protocol.Shape("bfloat16", 2, 8, 2, 16, 32, 64, 128, False))

    def test_bad_text(self):
        for text in ("", "bf16 b2", "int8 b2 heads 8/2 seq 16x32 d 64/128 full"):
            with self.assertRaises(ValueError):
                protocol.Shape.parse(text)

    def test_operations(self):
        full = protocol.Shape("bfloat16", 2, 3, 3, 5, 7, 11, 13, False)
        self.assertEqual(full.flops(), 2 * 2 * 3 * 5 * 7 * (11 + 13))
        causal = protocol.Shape.parse(protocol.OTHER_SHAPES[0])
        # 0.4988 ms forward and 1.5236 ms backward are 551 and 451 TFLOP/s.
        self.assertAlmostEqual(causal.flops() / 0.4988e-3 / 1e12, 551, delta=0.5)
        self.assertAlmostEqual(causal.flops(backward=True) / 1.5236e-3 / 1e12, 451, delta=0.5)
        self.assertEqual(causal.flops(density=0.25), causal.flops() / 2)

    def test_grid(self):
        grid = protocol.training_grid()
        self.assertEqual(len(grid), 36)
        self.assertEqual(len(set(grid)), 36)
        for shape in grid:
            self.assertEqual(shape.batch * shape.seq_q, 16384)
            self.assertEqual(shape.heads_q * shape.dim_qk, 2048)

    def test_decode_bytes(self):
        shape = protocol.Shape.parse("bfloat16 b1 heads 32/8 seq 1x8192 d 128/128 full")
        self.assertEqual(shape.kv_bytes(), 2 * 8192 * 8 * 128 * 2)


class Timing(unittest.TestCase):
    def test_statistics(self):
        timing = protocol.Timing([4.0, 1.0, 2.0, 3.0, 5.0])
        self.assertEqual((timing.median_ms, timing.best_ms), (3.0, 1.0))
        self.assertAlmostEqual(timing.spread, 2.0 / 3.0)
        self.assertEqual(timing.rate(6), 2000.0)
        self.assertEqual(protocol.Timing([2.0]).spread, 0.0)

    def test_every_candidate_goes_first_equally_often(self):
        firsts = [order[0] for order in protocol.rotations(3, 9)]
        self.assertEqual([firsts.count(i) for i in range(3)], [3, 3, 3])
        for order in protocol.rotations(3, 9):
            self.assertEqual(sorted(order), [0, 1, 2])

    def test_interleaving(self):
        def slow():
            return 4.0

        def fast():
            return 0.5

        clock, entered = FakeClock(), []

        @contextlib.contextmanager
        def context():
            entered.append(1)
            yield

        found = protocol.measure([protocol.Candidate("slow", slow, context), protocol.Candidate("fast", fast)], clock,
                                 warmup=2, runs=4, min_sample_ms=3.0)
        self.assertEqual(clock.order[2:], ["slow", "fast", "fast", "slow"] * 2)
        self.assertEqual((found["slow"].calls, found["fast"].calls), (1, 6))
        self.assertEqual((found["slow"].median_ms, found["fast"].median_ms), (4.0, 0.5))
        self.assertEqual(len(entered), 5)

    def test_cpu_clock(self):
        self.assertGreaterEqual(protocol.CpuClock().sample(lambda: sum(range(1000)), 3), 0.0)


class Reports(unittest.TestCase):
    RECORDS = [
        {"shape": "a", "backend": "fa2", "direction": "forward", "tflops": 100.4, "median_ms": 1.5, "spread": 0.01},
        {"shape": "a", "backend": "cudnn", "direction": "forward", "refused": "no kernel"},
        {"shape": "b", "backend": "fa2", "direction": "forward", "tflops": 400.0, "median_ms": 0.5, "spread": 0.0},
        {"case": "full", "shape": "c", "direction": "backward", "tflops": 2.5, "median_ms": 1.0, "spread": 0.0,
         "density": 1.0, "first_call_s": 3.0},
    ]

    def test_table(self):
        lines = protocol.table(["a", "long"], [["xyz", 1]]).splitlines()
        self.assertEqual(lines, ["| a   | long |", "|-----|------|", "| xyz | 1    |"])

    def test_shape_table(self):
        text = torch_cuda.shape_table(self.RECORDS, ["fa2", "cudnn"], "forward")
        self.assertIn("100 (1.5000 ms, 1.0 %)", text)
        self.assertIn("refused", text)
        self.assertIn("200 (2 shapes)", text)
        self.assertEqual(torch_cuda.shape_table(self.RECORDS, ["fa2"], "backward"), "")

    def test_flex_table(self):
        self.assertIn("2.5 (1.0000 ms, 0.0 %)", torch_cuda.flex_table(self.RECORDS))
        self.assertEqual(torch_cuda.flex_table([]), "")

    def test_reason(self):
        self.assertEqual(torch_cuda.reason(RuntimeError("one\ntwo")), "one")
        self.assertEqual(torch_cuda.reason(ValueError()), "ValueError")
        self.assertEqual(len(torch_cuda.reason(RuntimeError("x" * 500))), 100)

    def test_four_digits(self):
        self.assertEqual([torch_cuda.tera(x) for x in (5.51234e14, 1.23456e9)], [551.2, 0.001235])

    def test_json(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "out.json"
            protocol.write_json(path, {"a": 1}, self.RECORDS)
            self.assertEqual(json.loads(path.read_text())["rows"], self.RECORDS)


class Selection(unittest.TestCase):
    def test_suites(self):
        count = lambda *argv: len(torch_cuda.selected_shapes(torch_cuda.parse_args(list(argv))))
        self.assertEqual(count(), 36)
        self.assertEqual(count("--suite", "grid,others"), 36 + len(protocol.OTHER_SHAPES))
        self.assertEqual(count("--suite", "flex"), 0)
        self.assertEqual(count("--dims", "64,128", "--seqs", "512", "--masks", "causal"), 2)
        self.assertEqual(count("--shape", protocol.OTHER_SHAPES[3]), 1)

    def test_unknown_words(self):
        for argv in (["--suite", "gird"], ["--backends", "fa9"], ["--masks", "window"]):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                torch_cuda.parse_args(argv)

    def test_directions(self):
        decode = protocol.Shape.parse(protocol.OTHER_SHAPES[-1])
        self.assertEqual(torch_cuda.directions(decode, True), [False])
        self.assertEqual(torch_cuda.directions(SMALL, True), [False, True])

    def test_flex_cases(self):
        for text, mask, score in torch_cuda.FLEX_CASES.values():
            self.assertIn(mask, ("full", "causal", "window", "blocks"))
            self.assertIn(score, ("none", "softcap", "alibi"))
            protocol.Shape.parse(text)

    def test_cpu_shapes(self):
        self.assertEqual(len(torch_cpu.shapes(torch_cpu.parse_args([]))), 32)


@unittest.skipUnless(HAVE_TORCH, "PyTorch is not installed")
class WithTorch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import torch
        cls.torch = torch
        torch.manual_seed(1)

    def reference(self, q, k, v, scores_of, keep):
        scores = scores_of(q @ k.transpose(-1, -2) / q.shape[-1]**0.5)
        return scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v

    def test_inputs(self):
        shape = protocol.Shape.parse("fp16 b2 heads 4/2 seq 3x5 d 64/32 full")
        q, k, v = torch_cuda.make_inputs(self.torch, shape, grad=True, device="cpu")
        self.assertEqual([tuple(t.shape) for t in (q, k, v)], [(2, 4, 3, 64), (2, 2, 5, 64), (2, 2, 5, 32)])
        self.assertTrue(q.transpose(1, 2).is_contiguous() and q.requires_grad and q.is_leaf)

    def test_unfused_peer_forward_and_backward(self):
        for backward in (False, True):
            attend, context = torch_cuda.sdpa_peer(self.torch, SMALL, "math")
            candidate, first_s = torch_cuda.prepare(self.torch, "math", attend, context, SMALL, backward, "cpu")
            timing = protocol.measure([candidate], protocol.CpuClock(), runs=2)["math"]
            self.assertGreater(timing.best_ms, 0.0)
            self.assertGreater(first_s, 0.0)
            with context():
                result = candidate.fn()
            self.assertEqual(len(result), 3 if backward else SMALL.batch)

    def test_grouped_heads(self):
        shape = protocol.Shape.parse("fp32 b1 heads 4/2 seq 8x8 d 16/16 causal")
        attend, context = torch_cuda.sdpa_peer(self.torch, shape, "math")
        q, k, v = torch_cuda.make_inputs(self.torch, shape, grad=False, device="cpu")
        keep = self.torch.ones(8, 8, dtype=self.torch.bool).tril()
        with context():
            out = attend(q, k, v)
        wide = [t.repeat_interleave(2, dim=1) for t in (k, v)]
        self.torch.testing.assert_close(out, self.reference(q, *wide, lambda s: s, keep))

    def test_flex_functions(self):
        torch, size = self.torch, 2 * torch_cuda.BLOCK
        shape = protocol.Shape("float32", 1, 4, 4, size, size, 16, 16, True)
        rows, columns = torch.arange(size)[:, None], torch.arange(size)[None, :]
        window = torch_cuda.mask_function(torch, "window", shape, "cpu")(0, 0, rows, columns)
        self.assertTrue(torch.equal(window, rows >= columns))  # shorter than the window: plain causal
        blocks = torch_cuda.mask_function(torch, "blocks", shape, "cpu")(0, 0, rows, columns)
        self.assertTrue(bool(blocks.diagonal().all()))
        cap = torch_cuda.score_function(torch, "softcap", shape, "cpu")
        self.assertLessEqual(cap(torch.tensor(1e6), 0, 0, 0, 0).item(), torch_cuda.SOFTCAP)
        alibi = torch_cuda.score_function(torch, "alibi", shape, "cpu")
        self.assertAlmostEqual(alibi(torch.tensor(1.0), 0, 0, 5, 3).item(), 1.0 - 2.0 * 2.0**-2)

    def test_block_share_of_the_flex_cases(self):
        from torch.nn.attention.flex_attention import create_block_mask
        for case, density in {"causal": 0.5156, "window1024": 0.1318, "blocksparse25": 0.26}.items():
            text, mask, _ = torch_cuda.FLEX_CASES[case]
            shape = protocol.Shape.parse(text)
            keep = torch_cuda.mask_function(self.torch, mask, shape, "cpu")
            blocks = create_block_mask(keep, None, None, shape.seq_q, shape.seq_kv, device="cpu")
            self.assertAlmostEqual(1.0 - blocks.sparsity() / 100.0, density, delta=0.01)

    def test_cpu_candidates(self):
        for layout in ("bshd", "bhsd"):
            found = torch_cpu.candidates(self.torch, SMALL, "auto", layout, True)
            self.assertEqual([c.name for c in found], ["forward", "backward"])
            for candidate in found:
                candidate.fn()


if __name__ == "__main__":
    unittest.main()
