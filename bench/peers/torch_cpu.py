#!/usr/bin/env python3
"""Time PyTorch's scaled_dot_product_attention on the CPU.

Arrays are (batch, seq, heads, dim) as a transformer's projections leave them, or with --layout bhsd
(batch, heads, seq, dim); inputs are normal random numbers. Prints a table of GFLOP/s and what share
that is of a matrix product sampled in turn with it; --json writes everything to a file as well.
"""

import argparse
import contextlib
import datetime
import os
import platform
import sys

import protocol

BACKENDS = ("auto", "flash", "math")


INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve", "bf16")


def describe_cpu():
    """The processor's name, and which of the instruction sets that matter here it has."""
    fields = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return fields.get("model name") or platform.processor(), [name for name in INSTRUCTIONS if name in flags]


def shapes(args):
    return [
        protocol.Shape(protocol.SHORT_DTYPES.get(dtype, dtype), args.batch, args.heads, args.heads, seq, seq, dim, dim,
                       mask == "causal")
        for dtype in args.dtypes for dim in args.dims for mask in args.masks for seq in args.seqs
    ]


def environment(torch, threads):
    cpu, instructions = describe_cpu()
    return {
        "cpu": cpu,
        "instructions": instructions,
        "vector_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": threads,
        "cores_allowed": len(os.sched_getaffinity(0)),
        "load_average_at_start": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.date.today().isoformat(),
    }


def make_inputs(torch, shape, layout, grad):
    dtype = getattr(torch, shape.dtype)
    sizes = [(shape.seq_q, shape.heads_q, shape.dim_qk), (shape.seq_kv, shape.heads_kv, shape.dim_qk),
             (shape.seq_kv, shape.heads_kv, shape.dim_v)]
    tensors = []
    for seq, heads, dim in sizes:
        if layout == "bshd":
            tensor = torch.randn(shape.batch, seq, heads, dim).to(dtype).transpose(1, 2)
        else:
            tensor = torch.randn(shape.batch, heads, seq, dim).to(dtype)
        tensors.append(tensor.detach().requires_grad_(grad))
    return tensors


def candidates(torch, shape, backend, layout, backward):
    """Forward, and with `backward` also the gradient through autograd."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    kinds = {"flash": [SDPBackend.FLASH_ATTENTION], "math": [SDPBackend.MATH]}.get(backend)

    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=shape.causal, dropout_p=shape.dropout, enable_gqa=shape.heads_q != shape.heads_kv)

    def context():
        return sdpa_kernel(kinds) if kinds else contextlib.nullcontext()

    q, k, v = make_inputs(torch, shape, layout, grad=False)
    found = [protocol.Candidate("forward", lambda: attend(q, k, v), context)]
    if backward:
        inputs = make_inputs(torch, shape, layout, grad=True)
        with context(), torch.enable_grad():
            out = attend(*inputs)
        d_out = torch.randn_like(out)
        found.append(protocol.Candidate(
            "backward", lambda: torch.autograd.grad(out, inputs, d_out, retain_graph=True), context))
    return found


def matmul_candidate(torch, dtype, n=1536):
    """A square matrix product, and its count of operations: what the machine gives this library."""
    a, b = (torch.randn(n, n).to(getattr(torch, dtype)) for _ in range(2))
    return protocol.Candidate(f"matmul {dtype}", lambda: a @ b), 2 * n**3


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", type=protocol.words, default=["fp32", "bf16"], help="default fp32,bf16")
    parser.add_argument("--dims", type=protocol.numbers, default=[64, 128], help="default 64,128")
    parser.add_argument("--seqs", type=protocol.numbers, default=[512, 1024, 2048, 4096],
                        help="default 512,1024,2048,4096")
    parser.add_argument("--masks", type=protocol.words, default=["full", "causal"], help="default full,causal")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0, help="default: as many as cores are allowed")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="auto: what a user gets")
    parser.add_argument("--layout", choices=("bshd", "bhsd"), default="bshd")
    parser.add_argument("--backward", action="store_true", help="time the gradient as well")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--min-sample-ms", type=float, default=60.0)
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed: pip install torch numpy")
    threads = args.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    clock = protocol.CpuClock()
    env = environment(torch, threads)
    env["layout"], env["backend"] = args.layout, args.backend
    print(f"{env['cpu']}, {threads} threads, PyTorch {env['torch']} ({env['vector_capability']}), "
          f"layout {args.layout}, backend {args.backend}", flush=True)

    rows, records = [], []
    for shape in shapes(args):
        # The ceiling is sampled in turn with the shape. Without instructions for a narrow type its
        # matrix product is slower than the fp32 one, so both are asked.
        ceilings = [matmul_candidate(torch, dtype) for dtype in sorted({"float32", shape.dtype})]
        found = candidates(torch, shape, args.backend, args.layout, args.backward)
        timings = protocol.measure([*found, *(candidate for candidate, _ in ceilings)], clock, warmup=2,
                                   runs=args.runs, min_sample_ms=args.min_sample_ms)
        ceiling = max(timings[candidate.name].rate(flops, best=True) / 1e9 for candidate, flops in ceilings)
        for direction in (candidate.name for candidate in found):
            timing = timings[direction]
            flops = shape.flops(backward=direction == "backward")
            best, median = (timing.rate(flops, best=which) / 1e9 for which in (True, False))
            rows.append([shape, direction, f"{best:.0f}", f"{median:.0f}", f"{timing.median_ms:.2f}",
                         f"{100 * timing.spread:.0f} %", f"{ceiling:.0f}", f"{100 * best / ceiling:.0f} %"])
            records.append({"shape": str(shape), "direction": direction, "gflops_best": round(best, 1),
                            "gflops_median": round(median, 1), "matmul_gflops_best": round(ceiling, 1),
                            **timing.record()})
            print("  ".join(str(cell) for cell in rows[-1]), file=sys.stderr, flush=True)
    env["load_average_at_end"] = [round(value, 2) for value in os.getloadavg()]

    print("\n" + protocol.table(["shape", "direction", "GFLOP/s best", "median", "ms (median)", "spread",
                                 "matmul GFLOP/s best", "share"], rows))
    if args.json:
        protocol.write_json(args.json, env, records)


if __name__ == "__main__":
    main()
