#!/usr/bin/env python3
"""flashwright on an NVIDIA GPU beside PyTorch's backends: tunes, checks, then times all of them in turn.

    python3 bench/gpu/compare.py --tune 15 --out bench/results/h200/NAME

For every slot of the shapes that is not tuned yet, --tune spends that many seconds. Then each shape is
timed with FlashAttention-2, cuDNN (and others with --backends) in the same process, sample by sample in
turn, on the same normal random inputs. Writes NAME.json with every sample's summary, NAME.txt with the
tables, and NAME.store.jsonl with what tuning learned (import it with `flashwright cache import`).
"""

import argparse
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "peers")]
import library  # noqa: E402
import ours  # noqa: E402
import protocol  # noqa: E402
import torch_cuda  # noqa: E402

EXTRA = [
    *(f"bfloat16 b4 heads 16/16 seq 4096x4096 d {d} causal dropout 0.0"
      for d in ("32/32", "40/40", "72/72", "80/80", "96/96", "160/160", "192/192", "192/128")),
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 64/64 causal dropout 0.1",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 128/128 causal dropout 0.1",
    "float16 b4 heads 16/16 seq 4096x4096 d 128/128 causal dropout 0.0",
    "bfloat16 b4 heads 32/8 seq 4096x4096 d 128/128 causal dropout 0.0",
    "float32 b4 heads 16/16 seq 2048x2048 d 64/64 causal dropout 0.0",
    "float16 b64 heads 16/16 seq 1024x1024 d 64/64 causal dropout 0.1",
]


def config_of(shape, direction):
    return {**ours.config_of(shape), "direction": direction}


def prepare_ours(torch, lib, shape, direction):
    """A candidate on the peers' layout, checked against them."""
    kernel = lib.kernel(config_of(shape, direction), ours.sizes_of(shape))
    if direction == "backward":
        inputs = torch_cuda.make_inputs(torch, shape, grad=False)
        launch, _ = ours.bind_gradients(torch, lib, shape, inputs, kernel, ours.config_of(shape))
        return protocol.Candidate(ours.NAME, launch), kernel.describe()["selection"]
    q, k, v = (t.transpose(1, 2) for t in torch_cuda.make_inputs(torch, shape, grad=False))
    out = torch.full((shape.batch, shape.seq_q, shape.heads_q, shape.dim_v), float("nan"), dtype=q.dtype,
                     device="cuda")
    lse = torch.empty(shape.batch, shape.heads_q, shape.seq_q, device="cuda")
    launch = kernel.bind(q, k, v, out, lse, seed=1)
    launch()
    torch.cuda.synchronize()
    if not torch.isfinite(out).all():
        raise RuntimeError("an output is not finite")
    if not shape.dropout:
        ours.check_rows(torch, shape, q, k, v, out)
    return protocol.Candidate(ours.NAME, launch), kernel.describe()["selection"]


def run_shape(torch, lib, shape, backends, direction, timing_options):
    backward = direction == "backward"
    own, selection = prepare_ours(torch, lib, shape, direction)
    candidates, refused = [own], {}
    for backend in backends:
        try:
            candidates.append(torch_cuda.make_candidate(torch, shape, backend, backward)[0])
        except torch_cuda.FAILURES as error:
            refused[backend] = torch_cuda.reason(error)
            torch.cuda.empty_cache()
    timings = torch_cuda.time_cuda_interleaved(candidates, **timing_options)
    record = {"shape": str(shape), "direction": direction, "schedule": selection["schedule"],
              "chosen_by": selection["chosen_by"], "refused": refused, "times": {}}
    for name, timing in timings.items():
        record["times"][name] = {"tflops": torch_cuda.tera(timing.rate(shape.flops(backward))), **timing.record()}
        if name != ours.NAME:  # paired: the samples of one turn
            ratios = [other / own for own, other in zip(timings[ours.NAME].samples_ms, timing.samples_ms)]
            record["times"][name]["speedup"] = round(statistics.median(ratios), 4)
    return record


def speedup(record, backend):
    return record["times"].get(backend, {}).get("speedup")


def make_table(records, backends, direction):
    rows = []
    for record in records:
        own = record["times"][ours.NAME]
        row = [record["shape"], f"{own['tflops']:.0f} ({100 * own['spread']:.1f} %)"]
        for backend in backends:
            other = record["times"].get(backend)
            row.append("refused" if other is None else f"{other['tflops']:.0f}")
        row += [f"{speedup(record, b):.3f}" if speedup(record, b) else "-" for b in backends]
        rows.append(row + [record["schedule"], record["chosen_by"]])
    means = []
    for backend in backends:
        found = [speedup(r, backend) for r in records if speedup(r, backend)]
        means.append(f"{protocol.geometric_mean(found):.3f} (min {min(found):.3f})" if found else "-")
    rows.append(["geometric mean of the ratios", "", *([""] * len(backends)), *means, "", ""])
    heads = [f"{direction}, TFLOP/s", "ours (spread)", *backends, *(f"ours / {b}" for b in backends), "schedule",
             "chosen by"]
    return protocol.table(heads, rows)


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", type=float, default=0, metavar="SECONDS", help="budget for each slot; 0: do not tune")
    parser.add_argument("--backends", type=protocol.words, default=["fa2", "cudnn"])
    parser.add_argument("--direction", choices=["forward", "backward"], default="forward",
                        help="backward: the gradients alone, PyTorch's through autograd")
    parser.add_argument("--dims", type=protocol.numbers, default=[64, 128, 256])
    parser.add_argument("--seqs", type=protocol.numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--no-extra", action="store_true", help="the training grid only")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--min-sample-ms", type=float, default=1.0)
    parser.add_argument("--store", default=":memory:", help="folder of the tuning store")
    parser.add_argument("--import-store", metavar="FILE", help="import tuning results first")
    parser.add_argument("--out", type=pathlib.Path, help="write NAME.json, NAME.txt and NAME.store.jsonl")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed: pip install torch numpy")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")
    if args.out and args.out.with_suffix(".json").exists():
        sys.exit(f"{args.out}.json is there already: results are never overwritten")
    torch.manual_seed(1)
    lib = library.Library(options={"cache_dir": ":memory:", "data_dir": args.store})
    if args.import_store:
        lib.text("flashwright_cache", b"import", args.import_store.encode())
    grid = protocol.training_grid(args.dims, args.seqs)
    extra = [] if args.no_extra else [protocol.Shape.parse(text) for text in EXTRA]
    if args.tune:
        ours.tune_all(lib, grid + extra, args.tune, lambda shape: config_of(shape, args.direction))
    timing = {"warmup": args.warmup, "runs": args.runs, "min_sample_ms": args.min_sample_ms}
    env = {**torch_cuda.environment(torch), "timing": timing, "ceilings_at_start": torch_cuda.ceilings(torch)}
    grid_records = [run_shape(torch, lib, shape, args.backends, args.direction, timing) for shape in grid]
    extra_records = [run_shape(torch, lib, shape, args.backends, args.direction, timing) for shape in extra]
    env["ceilings_at_end"] = torch_cuda.ceilings(torch)
    text = ", ".join(f"{key} {value}" for key, value in env.items())
    text += "\n\n" + make_table(grid_records, args.backends, args.direction)
    if extra_records:
        text += "\n\n" + make_table(extra_records, args.backends, args.direction)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        protocol.write_json(args.out.with_suffix(".json"), env, grid_records + extra_records)
        args.out.with_suffix(".txt").write_text(text + "\n")
        lib.text("flashwright_cache", b"export", str(args.out.with_suffix(".store.jsonl")).encode())


if __name__ == "__main__":
    main()
