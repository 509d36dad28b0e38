#!/usr/bin/env python3
"""Many schedules of the same problems on an NVIDIA GPU, timed in turn with PyTorch's backends.

    python3 bench/gpu/sweep.py --out bench/results/h200/NAME PLAN.json...

A plan is a list of {"shapes": [...], "schedules": [...]} with optional "config" (more of the Config, such as a mask:
"blocks" is a random quarter of all) and "direction": "backward" for the gradients. A shape is a text like "bf16 b4
heads 16/16 seq 4096x4096 d 128/128 causal"; "grid d64 causal" stands for the six shapes of the training grid. A
schedule may hold alternatives: "q128.kv{96,128}.w12.st2.b1{,.pp1}"; "" is the library's choice. Kernels are compiled in
parallel, checked, then timed.
Writes NAME.json and NAME.txt.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "peers")]
import library  # noqa: E402
import ours  # noqa: E402
import protocol  # noqa: E402
import torch_cuda  # noqa: E402


def expand(text):
    """'a{b,c}d' -> ['abd', 'acd']"""
    parts = re.split(r"\{([^}]*)\}", text)
    choices = [[part] if i % 2 == 0 else part.split(",") for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def shapes_of(text):
    grid = re.fullmatch(r"grid d(\d+) (full|causal)", text)
    if grid:
        return protocol.training_grid([int(grid[1])], masks=[grid[2]])
    return [protocol.Shape.parse(text)]


def is_backward(entry):
    return entry.get("direction") == "backward"


def config_for(entry, shape, schedule):
    config = {**ours.config_of(shape), **entry.get("config", {})}
    if is_backward(entry):
        config["direction"] = "backward"
    return {**config, "schedule": schedule} if schedule else config


class Kernels:
    """Compiles each config once, all of them in parallel."""

    def __init__(self, lib, workers):
        self.lib, self.pool, self.found = lib, concurrent.futures.ThreadPoolExecutor(workers), {}

    def start(self, config, shape):
        # Without a pinned schedule the library may choose by the sizes.
        sizes = ours.sizes_of(shape)
        key = json.dumps([config, None if "schedule" in config else sizes], sort_keys=True)
        if key not in self.found:
            self.found[key] = self.pool.submit(self.lib.kernel, config, sizes)
        return self.found[key]


def full_blocks(torch, shape, device):
    """Lists of the peers' random blocks, all of them full: by rows of queries, and for gradients by columns of keys."""
    chosen = torch_cuda.block_table(torch, shape, "cpu")

    def compressed(table):
        rows = [row.nonzero().flatten() for row in table]
        return [[0, *itertools.accumulate(len(row) for row in rows)], torch.cat(rows)]

    def empty(table):
        return [[0] * (len(table) + 1), [0]]

    lists = [*compressed(chosen), *empty(chosen), [0], *compressed(chosen.T), *empty(chosen.T), [0]]
    arrays = [torch.as_tensor(values, dtype=torch.int32, device=device) for values in lists]
    blocks = library.Blocks(library.ctypes.sizeof(library.Blocks), shape.seq_q, shape.seq_kv, torch_cuda.BLOCK,
                            torch_cuda.BLOCK, 1, 1, *(array.data_ptr() for array in arrays))
    blocks.arrays = arrays  # live as long as what points to them
    return blocks


def bind(torch, lib, entry, kernel, shape, inputs, check):
    if is_backward(entry):
        forward = {**ours.config_of(shape), **entry.get("config", {})}
        return ours.bind_gradients(torch, lib, shape, inputs, kernel, forward)[0]
    q, k, v = (t.transpose(1, 2) for t in inputs)
    out = torch.full((shape.batch, shape.seq_q, shape.heads_q, shape.dim_v), float("nan"), dtype=q.dtype, device="cuda")
    lse = torch.empty(shape.batch, shape.heads_q, shape.seq_q, device="cuda")
    blocks = full_blocks(torch, shape, "cuda") if entry.get("config", {}).get("mask") == "blocks" else None
    launch = kernel.bind(q, k, v, out, lse, blocks=blocks, seed=1)
    launch()
    torch.cuda.synchronize()
    if not torch.isfinite(out).all():
        raise RuntimeError("an output is not finite")
    if check and not shape.dropout and not entry.get("config"):
        ours.check_rows(torch, shape, q, k, v, out)
    return launch


def run_shape(torch, kernels, entry, shape, schedules, backends, timing, check):
    inputs = torch_cuda.make_inputs(torch, shape, grad=False)
    candidates, refused = [], {}
    for schedule in schedules:
        name = schedule or "default"
        try:
            kernel = kernels.start(config_for(entry, shape, schedule), shape).result()
            launch = bind(torch, kernels.lib, entry, kernel, shape, inputs, check)
            candidates.append(protocol.Candidate(name, launch))
        except (library.Failure, RuntimeError) as error:
            refused[name] = str(error)[:300]
    for backend in backends:
        try:
            candidates.append(torch_cuda.make_candidate(torch, shape, backend, is_backward(entry))[0])
        except torch_cuda.FAILURES as error:
            refused[backend] = torch_cuda.reason(error)
            torch.cuda.empty_cache()
    timings = torch_cuda.time_cuda_interleaved(candidates, **timing) if candidates else {}
    flops = shape.flops(is_backward(entry))
    rows = {name: {"tflops": torch_cuda.tera(t.rate(flops)), **t.record()} for name, t in timings.items()}
    for backend in backends:
        for name, timing_ in timings.items():
            if backend in timings and name not in backends:
                ratios = [b / a for a, b in zip(timing_.samples_ms, timings[backend].samples_ms)]
                rows[name][f"against_{backend}"] = round(statistics.median(ratios), 4)
    return {"shape": str(shape), "direction": entry.get("direction", "forward"), "config": entry.get("config", {}),
            "times": rows, "refused": refused}


def describe(record, backends):
    lines = [f"{record['shape']} {record['config'] or ''}"]
    for name, row in sorted(record["times"].items(), key=lambda item: -item[1]["tflops"]):
        ratios = " ".join(f"{row[f'against_{b}']:.3f}" for b in backends if f"against_{b}" in row)
        lines.append(f"  {row['tflops']:7.1f} {100 * row['spread']:4.1f} %  {ratios:6} {name}")
    reasons = {}
    for name, reason in record["refused"].items():
        reasons.setdefault(reason.split("\n")[0], []).append(name)
    lines += [f"  refused: {', '.join(names)}: {reason[:160]}" for reason, names in reasons.items()]
    return "\n".join(lines)


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="+", type=pathlib.Path)
    parser.add_argument("--backends", type=protocol.words, default=["cudnn"])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--min-sample-ms", type=float, default=1.0)
    parser.add_argument("--no-check", action="store_true", help="do not compare with float64")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=pathlib.Path, help="write NAME.json and NAME.txt")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    import torch
    torch.manual_seed(1)
    if args.out and args.out.with_suffix(".json").exists():
        sys.exit(f"{args.out}.json is there already: results are never overwritten")
    lib = library.Library(options={"cache_dir": ":memory:", "data_dir": ":memory:"})
    kernels = Kernels(lib, args.workers)
    work = []
    for entry in itertools.chain.from_iterable(json.loads(plan.read_text()) for plan in args.plans):
        schedules = list(dict.fromkeys(itertools.chain.from_iterable(expand(s) for s in entry["schedules"])))
        for shape in itertools.chain.from_iterable(shapes_of(text) for text in entry["shapes"]):
            work.append((entry, shape, schedules))
            for schedule in schedules:
                kernels.start(config_for(entry, shape, schedule), shape)
    start = time.time()
    concurrent.futures.wait(kernels.found.values())
    print(f"{len(kernels.found)} kernels compiled in {time.time() - start:.1f} s", flush=True)
    timing = {"warmup": args.warmup, "runs": args.runs, "min_sample_ms": args.min_sample_ms}
    records = []
    text = ""
    for entry, shape, schedules in work:
        records.append(run_shape(torch, kernels, entry, shape, schedules, args.backends, timing, not args.no_check))
        text += describe(records[-1], args.backends) + "\n"
        print(describe(records[-1], args.backends), flush=True)
        if args.out:  # after each shape, so that nothing is lost when time runs out
            args.out.parent.mkdir(parents=True, exist_ok=True)
            protocol.write_json(args.out.with_suffix(".json"), {**torch_cuda.environment(torch), "timing": timing},
                                records)
            args.out.with_suffix(".txt").write_text(text)


if __name__ == "__main__":
    main()
