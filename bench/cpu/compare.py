#!/usr/bin/env python3
"""flashwright on the CPU beside PyTorch's scaled_dot_product_attention and the processor's multiply-add rate.

    python3 bench/cpu/compare.py --tune 5 --out bench/results/CPU/NAME

Every shape is timed with PyTorch in the same process, sample by sample in turn, with the same threads, on the
same normal random inputs, which are (batch, seq, heads, dim) in memory. The multiply-add rate is that of
registers alone, sampled in the same turns. `--direction backward` times the gradients alone, PyTorch's through
autograd. Writes NAME.json and NAME.txt.
"""

import argparse
import ctypes
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "peers")]
import library  # noqa: E402
import ours  # noqa: E402
import protocol  # noqa: E402
import torch_cpu  # noqa: E402

PEER = "peer"


class Plugin(ctypes.Structure):
    """CpuPlugin of api/cpu_plugin.hpp."""
    _fields_ = [("build_id", ctypes.c_char_p), ("family", ctypes.c_void_p), ("backend", ctypes.c_void_p),
                ("fma_peak_gflops", ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int, ctypes.c_double))]


def load_peak(path):
    """The function that measures 10^9 operations a second of so many threads, for about so many milliseconds."""
    plugin = ctypes.CDLL(str(pathlib.Path(path).parent / "libflashwright-cpu.so"))
    plugin.flashwright_cpu_plugin.restype = ctypes.POINTER(Plugin)
    return plugin.flashwright_cpu_plugin(None).contents.fma_peak_gflops


def config_of(shape, direction="forward"):
    config = {**ours.config_of(shape), "target": "cpu"}
    return {**config, "direction": direction} if direction != "forward" else config


def prepare_forward(torch, lib, shape, inputs):
    """Our launch and PyTorch's, and which schedule ours has."""
    q, k, v = (tensor.transpose(1, 2) for tensor in inputs)
    out = torch.full((shape.batch, shape.seq_q, shape.heads_q, shape.dim_v), float("nan"), dtype=q.dtype)
    lse = torch.empty(shape.batch, shape.heads_q, shape.seq_q)
    kernel = lib.kernel(config_of(shape), ours.sizes_of(shape))
    launch = kernel.bind(q, k, v, out, lse)
    launch()
    ours.check_rows(torch, shape, q, k, v, out)

    def attend():
        return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=shape.causal)

    return launch, attend, kernel.describe()["selection"]


def prepare_backward(torch, lib, shape, inputs):
    kernel = lib.kernel(config_of(shape, "backward"), ours.sizes_of(shape))
    launch, d_o = ours.bind_gradients(torch, lib, shape, inputs, kernel, config_of(shape))
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_(True) for tensor in inputs]
        peer_out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=shape.causal)

    def differentiate():
        return torch.autograd.grad(peer_out, leaves, d_o.transpose(1, 2), retain_graph=True)

    return launch, differentiate, kernel.describe()["selection"]


def run_shape(torch, lib, shape, peak, args):
    inputs = torch_cpu.make_inputs(torch, shape, "bshd", grad=False)
    prepare = prepare_backward if args.direction == "backward" else prepare_forward
    launch, peer_call, selection = prepare(torch, lib, shape, inputs)
    flops = shape.flops(backward=args.direction == "backward")
    peaks = []

    def reach_peak():
        peaks.append(peak(args.threads, args.min_sample_ms))

    candidates = [protocol.Candidate(ours.NAME, launch), protocol.Candidate(PEER, peer_call),
                  protocol.Candidate("peak", reach_peak)]
    timings = protocol.measure(candidates, protocol.CpuClock(), warmup=2, runs=args.runs,
                               min_sample_ms=args.min_sample_ms)
    peaks = peaks[-args.runs * timings.pop("peak").calls:]
    mine, peer = timings[ours.NAME], timings[PEER]
    ratios = [b / a for a, b in zip(mine.samples_ms, peer.samples_ms)]
    shares = [flops / (ms * 1e6) / rate for ms, rate in zip(mine.samples_ms, peaks[::len(peaks) // args.runs])]
    gflops = {name: {"median": timing.rate(flops) / 1e9, "best": timing.rate(flops, best=True) / 1e9}
              for name, timing in timings.items()}
    return {"shape": str(shape), "schedule": selection["schedule"], "chosen_by": selection["chosen_by"],
            "gflops": gflops[ours.NAME], "peer_gflops": gflops[PEER],
            "peak_gflops": {"median": statistics.median(peaks), "best": max(peaks)},
            "share_of_peak": {"median": statistics.median(shares), "best": gflops[ours.NAME]["best"] / max(peaks)},
            "speedup": statistics.median(ratios),
            "times": {ours.NAME: mine.record(), "pytorch": peer.record()}}


def make_table(records, direction):
    rows = [[r["shape"], f"{r['gflops']['median']:.0f}", f"{100 * r['times'][ours.NAME]['spread']:.0f} %",
             f"{r['peer_gflops']['median']:.0f}", f"{100 * r['times']['pytorch']['spread']:.0f} %",
             f"{r['speedup']:.2f}", f"{r['peak_gflops']['median']:.0f}",
             f"{100 * r['share_of_peak']['median']:.0f} %", f"{100 * r['share_of_peak']['best']:.0f} %", r["schedule"]]
            for r in records]
    found = [r["speedup"] for r in records]
    rows.append(["geometric mean of the ratios", "", "", "", "",
                 f"{protocol.geometric_mean(found):.2f} (min {min(found):.2f})", "", "", "", ""])
    return protocol.table([f"{direction}, GFLOP/s", "ours", "spread", "PyTorch", "spread", "ours / PyTorch",
                           "multiply-add peak", "ours / peak", "best / best", "schedule"], rows)


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", type=float, default=0, metavar="SECONDS", help="budget for each slot; 0: do not tune")
    parser.add_argument("--direction", choices=["forward", "backward"], default="forward")
    parser.add_argument("--dtypes", type=protocol.words, default=["fp32", "bf16"])
    parser.add_argument("--dims", type=protocol.numbers, default=[64, 128])
    parser.add_argument("--seqs", type=protocol.numbers, default=[512, 1024, 2048, 4096])
    parser.add_argument("--masks", type=protocol.words, default=["full", "causal"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--min-sample-ms", type=float, default=40.0)
    parser.add_argument("--out", type=pathlib.Path, help="write NAME.json and NAME.txt")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed: pip install torch numpy")
    if args.out and args.out.with_suffix(".json").exists():
        sys.exit(f"{args.out}.json is there already: results are never overwritten")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:args.threads])  # what our thread pool goes by
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    path = library.find_library()
    lib = library.Library(path, {"cache_dir": ":memory:", "data_dir": ":memory:"})
    peak = load_peak(path)
    shapes = torch_cpu.shapes(args)
    if args.tune:
        ours.tune_all(lib, shapes, args.tune, lambda shape: config_of(shape, args.direction))
    env = torch_cpu.environment(torch, args.threads)
    records = []
    for shape in shapes:
        records.append(run_shape(torch, lib, shape, peak, args))
        print(records[-1]["shape"], f"{records[-1]['speedup']:.2f}", file=sys.stderr, flush=True)
    env["load_average_at_end"] = [round(value, 2) for value in os.getloadavg()]
    text = ", ".join(f"{key} {value}" for key, value in env.items()) + "\n\n" + make_table(records, args.direction)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        protocol.write_json(args.out.with_suffix(".json"), env, records)
        args.out.with_suffix(".txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
