#!/usr/bin/env python3
"""Masks and score changes on an NVIDIA GPU: flashwright beside FlexAttention, timed in turn.

    python3 bench/gpu/variants.py --out bench/results/h200/NAME [--cases window1024,softcap] [SCHEDULE...]

The cases are those of bench/peers/torch_cuda.py. Without schedules the library chooses. Each result is compared
with FlexAttention's on the same inputs. TFLOP/s count the blocks that FlexAttention computes (128 x 128). Beside the
ratio stands how our rate relates to our own without mask and score change. Writes NAME.json and NAME.txt.
"""

import argparse
import itertools
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "peers"), str(ROOT / "bench" / "gpu")]
import library  # noqa: E402
import ours  # noqa: E402
import protocol  # noqa: E402
import sweep  # noqa: E402
import torch_cuda  # noqa: E402

MASKS = {"full": "none", "causal": "causal", "window": f"window:{torch_cuda.WINDOW - 1},0", "blocks": "blocks"}


def config_of(shape, mask, score, schedule):
    config = {"dtype": ours.SHORT[shape.dtype], "head_dim": shape.dim_qk, "mask": MASKS[mask]}
    if score == "softcap":
        config["softcap"] = torch_cuda.SOFTCAP
    if score == "alibi":
        config["alibi"] = True
    return {**config, "schedule": schedule} if schedule else config


def full_blocks(torch, shape):
    """Lists of the peers' random blocks, all of them full."""
    chosen = torch_cuda.block_table(torch, shape, "cpu")
    columns = [row.nonzero().flatten() for row in chosen]
    offsets = [0, *itertools.accumulate(len(row) for row in columns)]
    arrays = [torch.tensor(offsets, dtype=torch.int32), torch.cat(columns).to(torch.int32),
              torch.zeros(len(offsets), dtype=torch.int32), torch.zeros(1, dtype=torch.int32),
              torch.zeros(1, dtype=torch.int32)]
    arrays = [array.cuda() for array in arrays]
    blocks = library.Blocks(library.ctypes.sizeof(library.Blocks), shape.seq_q, shape.seq_kv, torch_cuda.BLOCK,
                            torch_cuda.BLOCK, 1, 1, *(array.data_ptr() for array in arrays))
    return blocks, arrays


def bind(torch, kernel, shape, inputs, mask, score):
    q, k, v = (t.transpose(1, 2) for t in inputs)
    out = torch.full((shape.batch, shape.seq_q, shape.heads_q, shape.dim_v), float("nan"), dtype=q.dtype, device="cuda")
    blocks, keep = full_blocks(torch, shape) if mask == "blocks" else (None, None)
    slopes = None
    if score == "alibi":
        slopes = torch.exp2(-8.0 / shape.heads_q * torch.arange(1, shape.heads_q + 1, device="cuda")).float()
    launch = kernel.bind(q, k, v, out, blocks=blocks, alibi_slopes=slopes)
    launch()
    torch.cuda.synchronize()
    return lambda keep=keep: launch(), out.transpose(1, 2)


def run_case(torch, lib, case, schedules, timing):
    text, mask, score = torch_cuda.FLEX_CASES[case]
    shape = protocol.Shape.parse(text)
    inputs = torch_cuda.make_inputs(torch, shape, grad=False)
    attend, density = torch_cuda.flex_peer(torch, shape, mask, score)
    expected = attend(*inputs)
    candidates, refused = [protocol.Candidate("flex", lambda: attend(*inputs))], {}
    dense = lib.kernel(config_of(shape, "full", "none", ""), ours.sizes_of(shape))
    candidates.append(protocol.Candidate("dense", bind(torch, dense, shape, inputs, "full", "none")[0]))
    chosen = {}
    for schedule in schedules:
        try:
            kernel = lib.kernel(config_of(shape, mask, score, schedule), ours.sizes_of(shape))
            launch, out = bind(torch, kernel, shape, inputs, mask, score)
            error = (out.float() - expected.float()).abs().max().item()
            if not error <= 0.03:  # two roundings to bfloat16 of numbers below 4
                raise RuntimeError(f"differs from FlexAttention by {error:.3g}")
            name = schedule or "default"
            chosen[name] = kernel.describe()["selection"]["schedule"]
            candidates.append(protocol.Candidate(name, launch))
        except (library.Failure, RuntimeError) as error:
            refused[schedule or "default"] = str(error)[:300]
    timings = torch_cuda.time_cuda_interleaved(candidates, **timing)
    rows = {}
    for name, t in timings.items():
        work = shape.flops(density=1.0 if name == "dense" else density)
        rows[name] = {"tflops": torch_cuda.tera(t.rate(work)), **t.record()}
        if name in chosen:
            ratios = [b / a for a, b in zip(t.samples_ms, timings["flex"].samples_ms)]
            rows[name].update(schedule=chosen[name], against_flex=round(statistics.median(ratios), 4),
                              of_dense=round(rows[name]["tflops"] / rows["dense"]["tflops"], 4))
    return {"case": case, "shape": str(shape), "density": round(density, 4), "times": rows, "refused": refused}


def describe(record):
    lines = [f"{record['case']}: {record['shape']} density {record['density']}"]
    for name, row in sorted(record["times"].items(), key=lambda item: -item[1]["tflops"]):
        ratio = f"{row['against_flex']:.3f} of flex, {row['of_dense']:.3f} of dense" if "against_flex" in row else ""
        lines.append(f"  {row['tflops']:7.1f} {100 * row['spread']:4.1f} %  {name} {ratio}")
    lines += [f"  refused: {name}: {reason}" for name, reason in record["refused"].items()]
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", nargs="*", default=[""])
    parser.add_argument("--cases", type=protocol.words, default=list(torch_cuda.FLEX_CASES))
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args(argv)
    import torch
    if args.out and args.out.with_suffix(".json").exists():
        sys.exit(f"{args.out}.json is there already: results are never overwritten")
    torch.manual_seed(1)
    lib = library.Library(options={"cache_dir": ":memory:", "data_dir": ":memory:"})
    schedules = list(itertools.chain.from_iterable(sweep.expand(s) for s in args.schedules))
    timing = {"warmup": 2, "runs": args.runs, "min_sample_ms": 1.0}
    records = []
    for case in args.cases:
        records.append(run_case(torch, lib, case, schedules, timing))
        print(describe(records[-1]), flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            protocol.write_json(args.out.with_suffix(".json"), {**torch_cuda.environment(torch), "timing": timing},
                                records)
            args.out.with_suffix(".txt").write_text("\n".join(map(describe, records)) + "\n")


if __name__ == "__main__":
    main()
