#!/usr/bin/env python3
"""Host time of one call from PyTorch: flashwright.torch beside a bare launch, PyTorch's SDPA and FlexAttention.

    PYTHONPATH=build/python python3 bench/gpu/overhead.py
    PYTHONPATH=build/python python3 bench/gpu/overhead.py --device cpu      PyTorch's SDPA alone as a peer

One query and one key of 64 numbers, so that a kernel takes less than its call. Nothing waits for the device inside of a
series of calls; each number is the fastest of many series. The aim: 15 us above a bare launch, forward, no gradients.
Then the first call of a process, the import of flashwright included and that of torch not: without a kernel in the
store, and with it. The aim: 50 ms with it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import flashwright.torch as ft
import torch
from flashwright import _attention, _native, _torch_ops

CALLS, SERIES = 100, 60


def microseconds(call, device):
    call()
    best = float("inf")
    for _ in range(SERIES):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - started)
    return best / CALLS * 1e6


def bare_launch(q, k, v):
    """The kernel and its arguments are at hand; what is left is one call of the C interface."""
    o, lse = torch.empty_like(q), torch.empty(q.size(0), q.size(2), q.size(1), device=q.device)
    arguments = _torch_ops._arguments(q, k, v, o, lse)
    kernel = _attention.request("forward", "none").kernel(arguments)
    stream = torch.cuda.current_stream().cuda_stream if q.is_cuda else 0
    memory = torch.empty(kernel.workspace_bytes(arguments) + 256, dtype=torch.uint8, device=q.device)
    address = (memory.data_ptr() + 255) // 256 * 256

    def call(owners=(o, lse, memory)):  # the arguments hold addresses alone
        kernel.launch(arguments, stream, address)
    return call


def calls(device, dtype):
    q, k, v = (torch.randn(1, 1, 1, 64, device=device, dtype=dtype) for _ in range(3))
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    yield "bare launch", bare_launch(q, k, v)
    yield "flashwright.torch.attention", lambda: ft.attention(q, k, v)
    yield "flashwright.torch.scaled_dot_product_attention", lambda: ft.scaled_dot_product_attention(*heads_first)
    yield "torch.ops.flashwright.forward", lambda: torch.ops.flashwright.forward.default(
        q, k, v, None, None, None, (), None, "none", None, None, 0.0, False)
    yield "PyTorch SDPA", lambda: sdpa(*heads_first)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    swapped = [x.transpose(1, 2).detach().requires_grad_() for x in leaves]
    yield "flashwright.torch.attention, gradients wanted", lambda: ft.attention(*leaves)
    yield "PyTorch SDPA, gradients wanted", lambda: sdpa(*swapped)
    if device == "cuda":
        from torch.nn.attention.flex_attention import flex_attention
        flex = torch.compile(flex_attention)
        q, k, v = (torch.randn(1, 1, 128, 64, device=device, dtype=dtype) for _ in range(3))
        yield "PyTorch FlexAttention, compiled", lambda: flex(q, k, v)
        yield "PyTorch FlexAttention, compiled, gradients wanted", lambda: flex(q.requires_grad_(), k, v)


FIRST_CALL = """
import time, torch
q, k, v = (torch.randn(2, 512, 8, 64, device="{device}", dtype={dtype}) for _ in range(3))
q.sum().item()
started = time.perf_counter()
import flashwright.torch
flashwright.torch.attention(q, k, v, "causal").sum().item()
print((time.perf_counter() - started) * 1e3)
"""


def first_calls(device, dtype):
    """Milliseconds of the first call of a process: with an empty store, and the least of three with a full one."""
    with tempfile.TemporaryDirectory() as store:
        environment = {**os.environ, "FLASHWRIGHT_CACHE_DIR": store}
        command = [sys.executable, "-c", FIRST_CALL.format(device=device, dtype=dtype)]
        taken = [float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
                 for _ in range(4)]
    return taken[0], min(taken[1:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--out", help="a JSON file for the results")
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    results = {}
    for name, call in calls(options.device, dtype):
        results[name] = microseconds(call, options.device)
        above = results[name] - results["bare launch"]
        print(f"{name:50} {results[name]:7.1f} us   {above:+7.1f}", flush=True)
    cold, warm = first_calls(options.device, dtype)
    print(f"first call: {cold:.0f} ms with an empty store, {warm:.0f} ms with a full one")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "device": options.device, "microseconds": results,
                       "first_call_ms": {"empty store": cold, "full store": warm}}, file, indent=1)
    return 0 if results["flashwright.torch.attention"] <= results["bare launch"] + 15 else 1


if __name__ == "__main__":
    raise SystemExit(main())
