#!/usr/bin/env python3
"""Time PyTorch's attention on an NVIDIA GPU: FlashAttention-2, cuDNN, FlexAttention and unfused.

Arrays are contiguous (batch, seq, heads, dim), inputs are normal random numbers. CUDA events are the
clock, the backends of one shape are sampled in turn, and the median counts. The backward is what
torch.autograd.grad does once the forward has run.

To time a kernel of your own between the peers, import this file and hand both to time_cuda_interleaved().
"""

import argparse
import contextlib
import datetime
import functools
import subprocess
import sys
import time

import protocol

BACKENDS = ("fa2", "cudnn", "flex", "math")
SUITES = ("grid", "others", "flex")

# name -> shape, what may be attended to, what happens to a score
FLEX_CASES = {
    "full": ("bfloat16 b4 heads 16/16 seq 4096x4096 d 128/128 full", "full", "none"),
    "causal": ("bfloat16 b4 heads 16/16 seq 4096x4096 d 128/128 causal", "causal", "none"),
    "causal d64": ("bfloat16 b4 heads 32/32 seq 4096x4096 d 64/64 causal", "causal", "none"),
    "window1024": ("bfloat16 b2 heads 16/16 seq 8192x8192 d 128/128 causal", "window", "none"),
    "blocksparse25": ("bfloat16 b2 heads 16/16 seq 8192x8192 d 128/128 full", "blocks", "none"),
    "blocksparse25 d64": ("bfloat16 b2 heads 32/32 seq 8192x8192 d 64/64 full", "blocks", "none"),
    "softcap": ("bfloat16 b4 heads 16/16 seq 4096x4096 d 128/128 causal", "causal", "softcap"),
    "alibi": ("bfloat16 b4 heads 16/16 seq 4096x4096 d 128/128 causal", "causal", "alibi"),
}
WINDOW = 1024
SOFTCAP = 30.0
BLOCK = 128
BLOCK_SHARE = 0.25


class Refused(Exception):
    """The peer does not do this shape."""


# What a peer raises that lacks a kernel, memory or a compiler for a shape.
FAILURES = (RuntimeError, Refused, NotImplementedError, ValueError)


# ---- Timing ---------------------------------------------------------------------------------------


class CudaClock:
    """Times calls on the current stream with a pair of events.

    The GPU is first given a short wait, so that the calls are queued when it starts on them and the
    host's time to launch is not measured as the kernel's. With flush_bytes, that much memory is
    written before each sample, which then covers a single call, to start with a cold L2."""

    def __init__(self, queue_ahead=True, flush_bytes=0):
        import torch
        self.torch = torch
        self.queue_ahead = queue_ahead
        self.flush = torch.empty(flush_bytes, dtype=torch.uint8, device="cuda") if flush_bytes else None

    def sample(self, fn, calls):
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        if self.flush is not None:
            self.flush.zero_()
        cuda.synchronize()
        if self.queue_ahead:
            cuda._sleep(500_000 + 100_000 * calls)  # cycles: some 50 us of launching for each call
        start.record()
        for _ in range(calls):
            fn()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls


def time_cuda_interleaved(fns, warmup=3, runs=20, min_sample_ms=1.0, queue_ahead=True, flush_bytes=0):
    """Times several functions that launch work on the current stream, in turn.

    fns: name -> function without arguments, or a list of protocol.Candidate. Returns name ->
    protocol.Timing (median_ms, best_ms, spread, samples_ms)."""
    if isinstance(fns, dict):
        fns = [protocol.Candidate(name, fn) for name, fn in fns.items()]
    return protocol.measure(fns, CudaClock(queue_ahead, flush_bytes), warmup, runs, min_sample_ms,
                            max_calls=1 if flush_bytes else 100)


def time_cuda(fn, **options):
    """One function alone; see time_cuda_interleaved() for the options. Returns a protocol.Timing."""
    return time_cuda_interleaved({"fn": fn}, **options)["fn"]


# ---- The peers ------------------------------------------------------------------------------------


def make_inputs(torch, shape, grad, device="cuda"):
    """q, k, v as (batch, heads, seq, dim) views of contiguous (batch, seq, heads, dim) arrays."""
    dtype = getattr(torch, shape.dtype)
    sizes = [(shape.seq_q, shape.heads_q, shape.dim_qk), (shape.seq_kv, shape.heads_kv, shape.dim_qk),
             (shape.seq_kv, shape.heads_kv, shape.dim_v)]
    return [
        torch.randn(shape.batch, seq, heads, dim, dtype=dtype, device=device).transpose(1, 2).detach()
        .requires_grad_(grad) for seq, heads, dim in sizes
    ]


def sdpa_peer(torch, shape, backend):
    """The attention function of q, k, v and the context that selects the backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    kind = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}[backend]
    options = {"is_causal": shape.causal, "dropout_p": shape.dropout}
    if shape.heads_q != shape.heads_kv:
        options["enable_gqa"] = True
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, **options)
    return attend, functools.partial(sdpa_kernel, [kind])


def block_table(torch, shape, device):
    """A random choice of blocks, with the diagonal always in."""
    generator = torch.Generator().manual_seed(7)
    rows, columns = -(-shape.seq_q // BLOCK), -(-shape.seq_kv // BLOCK)
    chosen = torch.rand(rows, columns, generator=generator) < BLOCK_SHARE
    chosen |= torch.eye(rows, columns, dtype=torch.bool)
    return chosen.to(device)


def mask_function(torch, kind, shape, device):
    if kind == "full":
        return None
    if kind == "causal":
        return lambda b, h, q, kv: q >= kv
    if kind == "window":
        return lambda b, h, q, kv: (q >= kv) & (q - kv < WINDOW)
    chosen = block_table(torch, shape, device)
    return lambda b, h, q, kv: chosen[q // BLOCK, kv // BLOCK]


def score_function(torch, kind, shape, device):
    if kind == "none":
        return None
    if kind == "softcap":
        return lambda score, b, h, q, kv: SOFTCAP * torch.tanh(score / SOFTCAP)
    slopes = torch.exp2(-8.0 / shape.heads_q * torch.arange(1, shape.heads_q + 1, device=device))
    return lambda score, b, h, q, kv: score + slopes[h] * (kv - q)


def flex_peer(torch, shape, mask, score, device="cuda"):
    """The compiled attention function, and the share of blocks that it computes."""
    import torch._functorch.config as functorch_config
    from torch.nn.attention import flex_attention as flex
    if shape.dropout:
        raise Refused("FlexAttention has no dropout")
    # The gradient is taken many times from one forward, which donated buffers forbid.
    functorch_config.donated_buffer = False
    torch._dynamo.reset()
    keep = mask_function(torch, mask, shape, device)
    blocks = None
    if keep is not None:
        blocks = flex.create_block_mask(keep, None, None, shape.seq_q, shape.seq_kv, device=device)
    options = {"block_mask": blocks, "score_mod": score_function(torch, score, shape, device)}
    if shape.heads_q != shape.heads_kv:
        options["enable_gqa"] = True
    attend = functools.partial(torch.compile(flex.flex_attention), **options)
    return attend, 1.0 if blocks is None else 1.0 - blocks.sparsity() / 100.0


def prepare(torch, name, attend, context, shape, backward, device="cuda"):
    """A candidate that has run once, and how many seconds that first call took."""
    q, k, v = make_inputs(torch, shape, grad=backward, device=device)

    def forward():
        with torch.set_grad_enabled(backward):
            return attend(q, k, v)

    def gradient():
        return torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)

    def seconds(fn):
        start = time.perf_counter()
        result = fn()
        if device == "cuda":
            torch.cuda.synchronize()
        return result, time.perf_counter() - start

    with context():
        out, first_s = seconds(forward)
        if backward:
            d_out = torch.randn_like(out)
            _, first_s = seconds(gradient)
    return protocol.Candidate(name, gradient if backward else forward, context), first_s


def tera(rate):
    """Four digits of a rate in units of 10^12 a second."""
    return float(f"{rate / 1e12:.4g}")


def reason(error):
    """The first line of what a peer said when it refused, short enough for a table."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 100 else line[:97] + "..."


# ---- Suites ---------------------------------------------------------------------------------------


def make_candidate(torch, shape, backend, backward):
    if backend == "flex":
        attend, _ = flex_peer(torch, shape, "causal" if shape.causal else "full", "none")
        context = contextlib.nullcontext
    else:
        attend, context = sdpa_peer(torch, shape, backend)
    return prepare(torch, backend, attend, context, shape, backward)


def run_shape(torch, shape, backends, backward, timing_options):
    """One record a backend: its times, or why it refused."""
    candidates, records = [], {}
    for backend in backends:
        record = {"shape": str(shape), "backend": backend, "direction": "backward" if backward else "forward"}
        records[backend] = record
        try:
            candidate, first_s = make_candidate(torch, shape, backend, backward)
        except FAILURES as error:
            record["refused"] = reason(error)
            torch.cuda.empty_cache()
            continue
        candidates.append(candidate)
        record["first_call_s"] = round(first_s, 2)
    timings = time_cuda_interleaved(candidates, **timing_options) if candidates else {}
    for name, timing in timings.items():
        records[name]["tflops"] = tera(timing.rate(shape.flops(backward)))
        if shape.seq_q == 1:
            records[name]["gbytes_per_s"] = round(timing.rate(shape.kv_bytes()) / 1e9, 1)
        records[name].update(timing.record())
    return list(records.values())


def run_flex_case(torch, case, backward, timing_options):
    text, mask, score = FLEX_CASES[case]
    shape = protocol.Shape.parse(text)
    record = {"case": case, "shape": str(shape), "backend": "flex", "direction": "backward" if backward else "forward"}
    try:
        attend, density = flex_peer(torch, shape, mask, score)
        candidate, first_s = prepare(torch, case, attend, contextlib.nullcontext, shape, backward)
    except FAILURES as error:
        record["refused"] = reason(error)
        return record
    timing = time_cuda_interleaved([candidate], **timing_options)[case]
    record.update(density=round(density, 4), first_call_s=round(first_s, 2),
                  tflops=tera(timing.rate(shape.flops(backward, density))), **timing.record())
    return record


def cell(record):
    """A record as a table shows it: TFLOP/s (median ms, spread), or refused."""
    if record is None:
        return "-"
    if "refused" in record:
        return "refused"
    rate = f"{record['tflops']:.0f}" if record["tflops"] >= 20 else f"{record['tflops']:.1f}"
    return f"{rate} ({record['median_ms']:.4f} ms, {100 * record['spread']:.1f} %)"


def shape_table(records, backends, direction):
    by_shape = {}
    for record in records:
        if record["direction"] == direction and "case" not in record:
            by_shape.setdefault(record["shape"], {})[record["backend"]] = record
    rows = [[shape, *(cell(found.get(backend)) for backend in backends)] for shape, found in by_shape.items()]
    if not rows:
        return ""
    means = []
    for backend in backends:
        rates = [found[backend]["tflops"] for found in by_shape.values() if "tflops" in found.get(backend, {})]
        means.append(f"{protocol.geometric_mean(rates):.0f} ({len(rates)} shapes)" if rates else "-")
    return protocol.table([f"{direction}, TFLOP/s", *backends], [*rows, ["geometric mean", *means]])


def flex_table(records):
    rows = [[r["case"], r["direction"], r.get("density", "-"), r.get("first_call_s", "-"), cell(r)]
            for r in records if "case" in r]
    return protocol.table(["FlexAttention case", "direction", "density", "first call, s",
                           "TFLOP/s over computed blocks"], rows) if rows else ""


# ---- The machine ----------------------------------------------------------------------------------


def ceilings(torch):
    """Matrix product and copy of this GPU at this moment, next to which the rest can be read."""
    found = {}
    for n in (4096, 8192):
        a, b = (torch.randn(n, n, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        found[f"bf16_matmul_{n}_tflops"] = tera(time_cuda(lambda: a @ b).rate(2 * n**3))
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    found["copy_tbytes_per_s"] = tera(time_cuda(lambda: target.copy_(source)).rate(2 * (1 << 30)))
    return found


def environment(torch):
    env = {
        "device": torch.cuda.get_device_name(),
        "sm_count": torch.cuda.get_device_properties(0).multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "date": datetime.date.today().isoformat(),
    }
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.max.sm", "--format=csv,noheader"]
        env["driver_power_clock"] = subprocess.run(query, capture_output=True, text=True, check=True,
                                                   timeout=20).stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        env["driver_power_clock"] = "unknown"
    try:
        import triton
        env["triton"] = triton.__version__
    except ImportError:
        pass
    return env


# ---- Command line ---------------------------------------------------------------------------------


def selected_shapes(args):
    if args.shape:
        return [protocol.Shape.parse(text) for text in args.shape]
    chosen = []
    if "grid" in args.suite:
        dtype = protocol.SHORT_DTYPES.get(args.dtype, args.dtype)
        chosen += protocol.training_grid(args.dims, args.seqs, args.masks, dtype)
    if "others" in args.suite:
        chosen += [protocol.Shape.parse(text) for text in protocol.OTHER_SHAPES]
    return chosen


def directions(shape, backward):
    """Whether to take the gradient, once for each direction. A decode step has none."""
    return [False, True] if backward and shape.seq_q > 1 else [False]


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=protocol.words, default=["grid"],
                        help="of grid, others, flex, separated by commas; default grid")
    parser.add_argument("--shape", action="append", metavar="TEXT",
                        help=f"time this shape instead, e.g. '{protocol.OTHER_SHAPES[0]}'; may be repeated")
    parser.add_argument("--backends", type=protocol.words, default=["fa2", "cudnn"],
                        help="of fa2, cudnn, flex, math; default fa2,cudnn")
    parser.add_argument("--backward", action="store_true", help="time the gradient as well")
    parser.add_argument("--dtype", default="bf16", choices=[*protocol.SHORT_DTYPES, *protocol.DTYPES],
                        help="of the grid; default bf16")
    parser.add_argument("--dims", type=protocol.numbers, default=[64, 128, 256], help="of the grid")
    parser.add_argument("--seqs", type=protocol.numbers, default=[512, 1024, 2048, 4096, 8192, 16384],
                        help="of the grid")
    parser.add_argument("--masks", type=protocol.words, default=["full", "causal"], help="of the grid")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--min-sample-ms", type=float, default=1.0, help="a sample covers as many calls as this takes")
    parser.add_argument("--flush-mib", type=int, default=0, help="write that much memory before each call (cold L2)")
    parser.add_argument("--no-queue-ahead", action="store_true", help="let the host's launch time count")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    for name, chosen, known in (("--suite", args.suite, SUITES), ("--backends", args.backends, BACKENDS),
                                ("--masks", args.masks, ("full", "causal"))):
        for word in chosen:
            if word not in known:
                parser.error(f"{name}: unknown '{word}'; one of {', '.join(known)}")
    return args


def main(argv=None):
    args = parse_args(argv)
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed: pip install torch numpy")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")
    torch.manual_seed(1)
    timing_options = {"warmup": args.warmup, "runs": args.runs, "min_sample_ms": args.min_sample_ms,
                      "queue_ahead": not args.no_queue_ahead, "flush_bytes": args.flush_mib << 20}
    env = environment(torch)
    env["timing"] = timing_options
    env["ceilings_at_start"] = ceilings(torch)
    print(", ".join(f"{key} {value}" for key, value in env.items()), flush=True)

    records = []
    for shape in selected_shapes(args):
        for backward in directions(shape, args.backward):
            fresh = run_shape(torch, shape, args.backends, backward, timing_options)
            records += fresh
            print(f"{shape} {'backward' if backward else 'forward'}: "
                  + ", ".join(f"{r['backend']} {r.get('refused') or cell(r)}" for r in fresh),
                  file=sys.stderr, flush=True)
    if "flex" in args.suite and not args.shape:
        for case in FLEX_CASES:
            for backward in ([False, True] if args.backward else [False]):
                records.append(run_flex_case(torch, case, backward, timing_options))
                print(f"{case}: {records[-1].get('refused') or cell(records[-1])}", file=sys.stderr, flush=True)
    env["ceilings_at_end"] = ceilings(torch)

    for text in (shape_table(records, args.backends, "forward"), shape_table(records, args.backends, "backward"),
                 flex_table(records)):
        if text:
            print("\n" + text)
    print(f"\nceilings at the end: {env['ceilings_at_end']}")
    if args.json:
        protocol.write_json(args.json, env, records)


if __name__ == "__main__":
    main()
