#!/usr/bin/env python3
"""Checks of unfused.py. Those that need PyTorch run on its CPU backend, and are skipped where it is not installed."""

import importlib.util
import json
import os
import pathlib
import stat
import tempfile
import unittest
import unittest.mock

import protocol
import unfused

HAVE_TORCH = importlib.util.find_spec("torch") is not None


def report(**config):
    def row(seq, direction, kernel, **more):
        return {"seq": seq, "batch": 2, "heads": 4, "heads_kv": 4, "direction": direction, "kernel": kernel,
                "predicted_bytes": 2.0**20, **more}

    rows = [row(512, "forward", "unfused", time_us=5.0), row(512, "forward", "tiled", time_us=2.0, flops=1e6),
            row(512, "backward", "unfused", why="no such kernel"),
            row(512, "backward", "tiled", time_us=4.0, flops=2e9),
            row(1024, "backward", "unfused", why="no such kernel")]
    return {"config": {"head_dim": 64, **config}, "device": {"target": "sm_90a"}, "rows": rows}


class Rows(unittest.TestCase):
    def test_shapes(self):
        plain = report()
        self.assertEqual(unfused.shape_of(plain["rows"][0], plain["config"]),
                         protocol.Shape("bfloat16", 2, 4, 4, 512, 512, 64, 64, False))
        config = {"head_dim": 64, "head_dim_v": 32, "dtype": "fp16", "mask": "causal", "dropout": 0.1}
        self.assertEqual(unfused.shape_of(plain["rows"][4], config),
                         protocol.Shape("float16", 2, 4, 4, 1024, 1024, 64, 32, True, 0.1))

    def test_only_what_has_no_time_is_filled(self):
        before, done = report(), report()
        for row in unfused.fill(done, "PyTorch 9", lambda shape: float(shape.seq_q), lambda shape: 7.0):
            self.assertNotIn("why", row)
        self.assertEqual([done["rows"][i] for i in (0, 1, 3)], [before["rows"][i] for i in (0, 1, 3)])
        first, second = done["rows"][2], done["rows"][4]
        self.assertEqual((first["time_us"], first["by"], first["measured_bytes"]), (512.0, "PyTorch 9", 7.0))
        self.assertAlmostEqual(first["tflops"], 2e9 / 512e-6 / 1e12)  # the operations of the tiled pass
        self.assertEqual(second["time_us"], 1024.0)
        self.assertNotIn("tflops", second)  # there is no tiled pass beside it
        self.assertEqual(list(unfused.fill(done, "PyTorch 9", None)), [])  # nothing is left to do
        self.assertIn("512.0", unfused.describe({**first, "time_us": 512e3}))

    def test_what_does_not_fit_says_so(self):
        def time_of(shape):
            if shape.seq_q > 512:
                raise RuntimeError("CUDA out of memory\nmore")
            return 1.0

        done = report()
        first, second = unfused.fill(done, "PyTorch 9", time_of)
        self.assertEqual(first["time_us"], 1.0)
        self.assertNotIn("measured_bytes", first)
        self.assertEqual(second["why"], "PyTorch 9: CUDA out of memory")
        self.assertNotIn("time_us", second)

    def test_changed_scores_are_left_alone(self):
        for change in ({"softcap": 30.0}, {"alibi": True}):
            self.assertEqual(list(unfused.fill(report(**change), "PyTorch 9", None)), [])


class Ncu(unittest.TestCase):
    HEADING = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    PRINTED = "\n".join(["==PROF== Connected to process 1", HEADING,
                         '"0","gemm<a, b>","dram__bytes_read.sum","byte","1,000,000"',
                         '"0","gemm<a, b>","dram__bytes_write.sum","byte","20"',
                         '"1","softmax","dram__bytes_read.sum","byte","3"',
                         '"1","softmax","sm__cycles_elapsed.max","cycle","400"', "==PROF== Disconnected"])

    def test_all_kernels_are_added_up(self):
        self.assertEqual(unfused.sum_of_metrics(self.PRINTED), 1000023)
        self.assertEqual(unfused.sum_of_metrics("==ERROR== no permission"), 0)

    def profile(self, printed):
        """What measured_bytes says when this is what ncu prints, and the arguments that ncu got."""
        with tempfile.TemporaryDirectory() as folder:
            tool, said = pathlib.Path(folder, "ncu"), pathlib.Path(folder, "said")
            said.write_text(printed)
            tool.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/arguments\ncat {said}\n')
            tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
            path = f"{folder}{os.pathsep}{os.environ['PATH']}"
            with unittest.mock.patch.dict(os.environ, PATH=path):
                found = unfused.measured_bytes(unfused.shape_of(report()["rows"][0], report()["config"]))
            return found, pathlib.Path(folder, "arguments").read_text().splitlines()

    def test_ncu_runs_one_gradient_of_the_shape(self):
        found, arguments = self.profile(self.PRINTED)
        self.assertEqual(found, 1000023)
        self.assertEqual(arguments[arguments.index("--profile-from-start") + 1], "off")
        shape = arguments[arguments.index("--profile") + 1]
        self.assertEqual(unfused.parse_args(["--profile", shape]).profile, shape)
        self.assertEqual(protocol.Shape.parse(shape).seq_q, 512)

    def test_no_counter_is_an_error(self):
        with self.assertRaisesRegex(SystemExit, "ERR_NVGPUCTRPERM"):
            self.profile("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM")


@unittest.skipUnless(HAVE_TORCH, "PyTorch is not installed")
class Gradients(unittest.TestCase):
    SHAPES = ["float32 b2 heads 4/4 seq 96x96 d 32/32 full", "float32 b1 heads 4/2 seq 64x64 d 16/24 causal"]

    def gradient(self, text):
        import torch
        torch.manual_seed(1)
        shape = protocol.Shape.parse(text)
        return torch, shape, *unfused.make_gradient(torch, shape, "cpu")

    def test_against_float64(self):
        for text in self.SHAPES:
            torch, shape, gradient, (q, k, v, out, d_o) = self.gradient(text)
            wide = [t.detach().double().requires_grad_(True) for t in (q, k, v)]
            exact = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=shape.causal, enable_gqa=True)
            torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
            for got, right in zip(gradient(), torch.autograd.grad(exact, wide, d_o.double())):
                torch.testing.assert_close(got.double(), right, rtol=1e-4, atol=1e-5)

    def test_dropout_drops(self):
        for chance, same in (("0.0", True), ("0.5", False)):
            torch, _, _, (q, k, v, out, _) = self.gradient(f"{self.SHAPES[0]} dropout {chance}")
            exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            self.assertEqual(torch.allclose(out, exact, atol=1e-4), same)

    def test_seven_passes_over_the_scores(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        class Count(TorchDispatchMode):
            passes = 0

            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                out = function(*args, **(kwargs or {}))
                views = any(result.alias_info for result in function._schema.returns)
                if not views:
                    self.passes += sum(getattr(t, "shape", None) is not None and t.numel() == scores
                                       for t in [*args, out])
                return out

        for text in self.SHAPES:
            _, shape, gradient, _ = self.gradient(text)
            scores = shape.batch * shape.heads_q * shape.seq_q * shape.seq_kv
            with Count() as count:
                gradient()
            self.assertEqual(count.passes, 7, text)

    def test_a_report_of_a_cpu(self):
        with tempfile.TemporaryDirectory() as folder:
            given, out = pathlib.Path(folder, "a.json"), pathlib.Path(folder, "b.json")
            of_cpu = report(dtype="fp32")
            of_cpu["device"] = {"target": "cpu:avx2", "name": "a CPU"}
            for row in of_cpu["rows"]:
                row["seq"] //= 16
            given.write_text(json.dumps(of_cpu))
            with unittest.mock.patch("builtins.print"):
                unfused.main([str(given), str(out), "--runs", "2"])
            rows = json.loads(out.read_text())["rows"]
            self.assertGreater(rows[2]["time_us"], 0)
            self.assertIn("PyTorch", rows[4]["by"])
            with self.assertRaisesRegex(SystemExit, "never overwritten"):
                unfused.main([str(given), str(out)])
            with self.assertRaisesRegex(SystemExit, "ncu knows GPUs alone"):
                unfused.main([str(given), str(pathlib.Path(folder, "c.json")), "--measure", "ncu"])


if __name__ == "__main__":
    unittest.main()
