#!/usr/bin/env python3
"""Masks and score changes on an NVIDIA GPU: flashwright beside FlexAttention, timed in turn.

    python3 bench/gpu/variants.py --out bench/results/h200/NAME [--cases window1024,softcap] [SCHEDULE...]
    python3 bench/gpu/variants.py --direction backward --out bench/results/h200/NAME
    python3 bench/gpu/variants.py --target cpu [--direction backward]

The cases are those of bench/peers/torch_cuda.py. Without schedules the library chooses. Two heads of each result are
compared with float64. TFLOP/s count the blocks that FlexAttention computes (128 x 128). Beside the ratio stands how our
rate relates to our own without mask and score change. `--direction backward` times the gradients alone, FlexAttention's
through autograd. Writes NAME.json and NAME.txt.

With `--target cpu` nothing is timed and no GPU needed: the same launches, of shorter sequences in fp32, are compared
with float64.
"""

import argparse
import contextlib
import dataclasses
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
SKIPPED = 77  # exit status that ctest takes for "not run"


@dataclasses.dataclass(frozen=True)
class Case:
    shape: protocol.Shape
    mask: str
    score: str
    direction: str
    device: str

    @staticmethod
    def named(name, direction, device):
        text, mask, score = torch_cuda.FLEX_CASES[name]
        shape = protocol.Shape.parse(text)
        if device == "cpu":  # longer than the window, and some blocks
            shape = dataclasses.replace(shape, dtype="float32", batch=2, heads_q=2, heads_kv=2,
                                        seq_q=torch_cuda.WINDOW + 250, seq_kv=torch_cuda.WINDOW + 250)
        return Case(shape, mask, score, direction, device)

    def dense(self):
        return dataclasses.replace(self, mask="full", score="none")

    def forward(self):
        return dataclasses.replace(self, direction="forward")

    def config(self, schedule=""):
        config = {"dtype": ours.SHORT[self.shape.dtype], "head_dim": self.shape.dim_qk, "mask": MASKS[self.mask],
                  "direction": self.direction, "target": self.device}
        if self.score == "softcap":
            config["softcap"] = torch_cuda.SOFTCAP
        if self.score == "alibi":
            config["alibi"] = True
        return {**config, "schedule": schedule} if schedule else config


def bind(torch, lib, case, inputs, d_o, schedule):
    """A launch that has run once, the schedule, and what it writes by name, as (batch, heads, seq, dim)."""
    shape = case.shape
    q, k, v, d_o = (t.transpose(1, 2) for t in (*inputs, d_o))
    out = torch.full((shape.batch, shape.seq_q, shape.heads_q, shape.dim_v), float("nan"), dtype=q.dtype,
                     device=case.device)
    lse = torch.empty(shape.batch, shape.heads_q, shape.seq_q, device=case.device)
    same = {"blocks": sweep.full_blocks(torch, shape, case.device)} if case.mask == "blocks" else {}
    if case.score == "alibi":
        heads = torch.arange(1, shape.heads_q + 1, device=case.device)
        same["alibi_slopes"] = torch.exp2(-8.0 / shape.heads_q * heads).float()
    kernel = lib.kernel(case.config(schedule), ours.sizes_of(shape))
    if case.direction == "forward":
        launch, found = kernel.bind(q, k, v, out, lse, **same), {"o": out}
    else:
        lib.kernel(case.forward().config(), ours.sizes_of(shape)).bind(q, k, v, out, lse, **same)()
        found = {name: torch.full_like(t, float("nan")) for name, t in (("dq", q), ("dk", k), ("dv", v))}
        launch = kernel.bind(q, k, v, out, lse, d_o=d_o, **found, **same)
    launch()
    found = {name: tensor.transpose(1, 2) for name, tensor in found.items()}
    return launch, kernel.describe()["selection"]["schedule"], found


def attend(torch, case, inputs, d_o, dtype):
    """What `bind` finds, of the given heads, by scores in memory."""
    shape = case.shape
    heads = torch.arange(inputs[0].shape[1], device=case.device)[:, None, None]
    rows = torch.arange(shape.seq_q, device=case.device)[:, None]
    columns = torch.arange(shape.seq_kv, device=case.device)
    keep = torch_cuda.mask_function(torch, case.mask, shape, case.device)
    modify = torch_cuda.score_function(torch, case.score, shape, case.device)
    q, k, v = (t.detach().to(dtype).requires_grad_(case.direction == "backward") for t in inputs)
    with torch.enable_grad():
        scores = (q @ k.transpose(2, 3)) * shape.dim_qk**-0.5
        if modify:
            scores = modify(scores, 0, heads, rows, columns).to(dtype)
        if keep:
            scores = scores.masked_fill(~keep(0, heads, rows, columns), float("-inf"))
        out = torch.softmax(scores, -1) @ v
        if case.direction == "forward":
            return {"o": out.detach()}
        return dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, (q, k, v), d_o.to(dtype))))


def check(torch, case, inputs, d_o, found):
    """Compares two heads of the first batch entry with float64."""
    part = [t[:1, :2] for t in inputs]
    exact = attend(torch, case, part, d_o[:1, :2], torch.float64)
    plain = attend(torch, case, part, d_o[:1, :2], inputs[0].dtype)
    return {name: ours.check_close(f"{name} of {case}", exact[name], plain[name], found[name][:1, :2],
                                    2 if name == "o" else 3)
            for name in found}


def make_inputs(torch, case):
    inputs = torch_cuda.make_inputs(torch, case.shape, grad=False, device=case.device)
    shape = case.shape
    d_o = torch.randn(shape.batch, shape.seq_q, shape.heads_q, shape.dim_v, dtype=inputs[0].dtype, device=case.device)
    return inputs, d_o.transpose(1, 2)


def run_case(torch, lib, name, direction, schedules, timing):
    case = Case.named(name, direction, "cuda")
    shape, backward = case.shape, direction == "backward"
    inputs, d_o = make_inputs(torch, case)
    flex, density = torch_cuda.flex_peer(torch, shape, case.mask, case.score)
    candidates, refused = [torch_cuda.prepare(torch, "flex", flex, contextlib.nullcontext, shape, backward)[0]], {}
    candidates.append(protocol.Candidate("dense", bind(torch, lib, case.dense(), inputs, d_o, "")[0]))
    chosen = {}
    for schedule in schedules:
        try:
            launch, used, found = bind(torch, lib, case, inputs, d_o, schedule)
            check(torch, case, inputs, d_o, found)
            chosen[schedule or "default"] = used
            candidates.append(protocol.Candidate(schedule or "default", launch))
        except (library.Failure, RuntimeError) as error:
            refused[schedule or "default"] = str(error)[:300]
    timings = torch_cuda.time_cuda_interleaved(candidates, **timing)
    rows = {}
    for name_, t in timings.items():
        work = shape.flops(backward, density=1.0 if name_ == "dense" else density)
        rows[name_] = {"tflops": torch_cuda.tera(t.rate(work)), **t.record()}
        if name_ in chosen:
            ratios = [b / a for a, b in zip(t.samples_ms, timings["flex"].samples_ms)]
            rows[name_].update(schedule=chosen[name_], against_flex=round(statistics.median(ratios), 4),
                               of_dense=round(rows[name_]["tflops"] / rows["dense"]["tflops"], 4))
    return {"case": name, "shape": str(shape), "direction": direction, "density": round(density, 4), "times": rows,
            "refused": refused}


def describe(record):
    lines = [f"{record['case']} {record['direction']}: {record['shape']} density {record['density']}"]
    for name, row in sorted(record["times"].items(), key=lambda item: -item[1]["tflops"]):
        ratio = f"{row['against_flex']:.3f} of flex, {row['of_dense']:.3f} of dense" if "against_flex" in row else ""
        lines.append(f"  {row['tflops']:7.1f} {100 * row['spread']:4.1f} %  {name} {ratio}")
    lines += [f"  refused: {name}: {reason}" for name, reason in record["refused"].items()]
    return "\n".join(lines)


def check_lists(torch, lib, shape):
    """The lists by keys, which the CPU does without, are those that the library makes from the lists by queries."""
    blocks, made = sweep.full_blocks(torch, shape, "cpu"), library.ctypes.POINTER(library.Blocks)()
    lib.check(lib.c.flashwright_blocks_transpose(library.ctypes.byref(blocks), library.ctypes.byref(made)))
    full, lists = len(blocks.arrays[1]), -(-shape.seq_q // torch_cuda.BLOCK)
    for (name, _), mine in zip(library.Blocks._fields_[-len(blocks.arrays):], blocks.arrays):
        count = lists + 1 if name.endswith("offsets") else full if name.startswith("full") else 0  # none is partial
        right = list((library.ctypes.c_int32 * count).from_address(getattr(made.contents, name))) if count else []
        if right != mine[:count].tolist():
            raise RuntimeError(f"{name} of {shape} is {mine.tolist()}; expected {right}")
    lib.c.flashwright_blocks_free(made)


def check_on_cpu(torch, lib, name, direction, schedules):
    """The launches of a case without their times; raises where one is wrong."""
    case = Case.named(name, direction, "cpu")
    inputs, d_o = make_inputs(torch, case)
    if case.mask == "blocks":
        check_lists(torch, lib, case.shape)
    for schedule in schedules:
        _, used, found = bind(torch, lib, case, inputs, d_o, schedule)
        errors = check(torch, case, inputs, d_o, found)
        print(f"{name} {direction}: {used}: " + ", ".join(f"{key} off by {e:.1e}" for key, e in errors.items()),
              flush=True)


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", nargs="*", default=[""])
    parser.add_argument("--cases", type=protocol.words, default=list(torch_cuda.FLEX_CASES))
    parser.add_argument("--direction", choices=["forward", "backward"], default="forward")
    parser.add_argument("--target", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args(argv)
    for case in args.cases:
        if case not in torch_cuda.FLEX_CASES:
            parser.error(f"--cases: '{case}'; allowed: {', '.join(torch_cuda.FLEX_CASES)}")
    return args


def main(argv=None):
    args = parse_args(argv)
    try:
        import torch
    except ImportError:
        print("skipped: variants: PyTorch is not installed")
        sys.exit(SKIPPED)
    if args.out and args.out.with_suffix(".json").exists():
        sys.exit(f"{args.out}.json is there already: results are never overwritten")
    torch.manual_seed(1)
    lib = library.Library(options={"cache_dir": ":memory:", "data_dir": ":memory:"})
    schedules = list(itertools.chain.from_iterable(sweep.expand(s) for s in args.schedules))
    if args.target == "cpu":
        for case in args.cases:
            check_on_cpu(torch, lib, case, args.direction, schedules)
        return
    timing = {"warmup": 2, "runs": args.runs, "min_sample_ms": 1.0}
    records = []
    for case in args.cases:
        records.append(run_case(torch, lib, case, args.direction, schedules, timing))
        print(describe(records[-1]), flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            protocol.write_json(args.out.with_suffix(".json"), {**torch_cuda.environment(torch), "timing": timing},
                                records)
            args.out.with_suffix(".txt").write_text("\n".join(map(describe, records)) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
