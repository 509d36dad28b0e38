#!/usr/bin/env python3
"""Gradients of unfused attention by PyTorch, for the table of `flashwright bench paper`: no kernel of ours makes them.

    flashwright bench paper --measure ncu --json > kernels.json
    python3 bench/peers/unfused.py --measure ncu kernels.json paper.json
    python3 bench/paper.py paper.json paper.svg

Copies the report and gives its unfused backward rows a time, and with `--measure ncu` (on a GPU) the bytes that Nsight
Compute counts between the GPU and its memory. What is timed is autograd behind a forward pass that has run. It stores
scores in the element type and passes over them seven times, as the prediction of the table has it.
"""

import argparse
import csv
import json
import pathlib
import shutil
import subprocess
import sys

import protocol
import torch_cuda

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")


def shape_of(row, config):
    """The shape of a row, or None where its Config changes scores."""
    if config.get("softcap") or config.get("alibi"):
        return None
    dim = config["head_dim"]
    return protocol.Shape(protocol.SHORT_DTYPES[config.get("dtype", "bf16")], row["batch"], row["heads"],
                          row["heads_kv"], row["seq"], row["seq"], dim, config.get("head_dim_v", dim),
                          config.get("mask", "none") == "causal", config.get("dropout", 0.0))


def make_gradient(torch, shape, device):
    """A function that computes dq, dk and dv from stored weights, and the tensors (q, k, v, out, d_o) behind it."""
    q, k, v = (t.detach().contiguous().requires_grad_(True)
               for t in torch_cuda.make_inputs(torch, shape, grad=False, device=device))
    group = shape.heads_q // shape.heads_kv
    keys, values = (t.repeat_interleave(group, 1) if group > 1 else t for t in (k, v))
    # The factor and the mask stand where their gradients take no pass over the scores.
    scores = (q * shape.dim_qk**-0.5) @ keys.transpose(2, 3)
    if shape.causal:
        hidden = torch.full((shape.seq_q, shape.seq_kv), float("-inf"), dtype=q.dtype, device=device)
        scores = scores + hidden.triu(1 + shape.seq_kv - shape.seq_q)
    weights = torch.softmax(scores, -1)
    if shape.dropout:
        weights = torch.dropout(weights, shape.dropout, True)
    out = weights @ values
    d_o = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), d_o, retain_graph=True), (q, k, v, out, d_o)


def measure_us(torch, shape, device, runs):
    gradient, _ = make_gradient(torch, shape, device)
    clock = torch_cuda.CudaClock() if device == "cuda" else protocol.CpuClock()
    candidate = protocol.Candidate("unfused", gradient)
    timings = protocol.measure([candidate], clock, warmup=2, runs=runs, min_sample_ms=1.0, max_calls=100)
    return 1e3 * timings["unfused"].median_ms


def profile_once(torch, shape):
    """One gradient between the marks that ncu waits for."""
    gradient, _ = make_gradient(torch, shape, "cuda")
    gradient()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    gradient()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def sum_of_metrics(printed):
    """Bytes in what `ncu --csv` printed, other lines in between allowed."""
    rows = list(csv.reader(line for line in printed.splitlines() if line.startswith('"')))
    heading = next((row for row in rows if row[0] == "ID"), [])
    found = [dict(zip(heading, row)) for row in rows if row != heading]
    return sum(float(row["Metric Value"].replace(",", "")) for row in found if row.get("Metric Name") in METRICS)


def measured_bytes(shape):
    """What ncu counts for one gradient, which this script computes in a process of its own."""
    command = ["ncu", "--csv", "--print-units", "base", "--metrics", ",".join(METRICS), "--profile-from-start", "off",
               sys.executable, __file__, "--profile", str(shape)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    total = sum_of_metrics(done.stdout)
    if not total:
        last = (done.stdout.strip() or "it printed nothing").splitlines()[-1]
        sys.exit(f"--measure ncu: ncu counted nothing for {shape}: {last}")
    return total


def fill(report, by, time_of, bytes_of=None):
    """Completes the unfused backward rows of a report with functions of a shape. Yields each as it is done."""
    flops = {row["seq"]: row["flops"] for row in report["rows"]
             if (row["kernel"], row["direction"]) == ("tiled", "backward") and "flops" in row}
    for row in report["rows"]:
        shape = shape_of(row, report["config"])
        if (row["kernel"], row["direction"]) != ("unfused", "backward") or "time_us" in row or not shape:
            continue
        try:
            row["time_us"] = time_of(shape)
        except torch_cuda.FAILURES as error:  # no room for its scores, say
            row["why"] = f"{by}: {torch_cuda.reason(error)}"
            yield row
            continue
        row.pop("why", None)
        row["by"] = by
        if row["seq"] in flops:  # a rate counts the operations of the tiled pass
            row["tflops"] = flops[row["seq"]] / row["time_us"] * 1e-6
        if bytes_of:
            row["measured_bytes"] = bytes_of(shape)
        yield row


def describe(row):
    if "why" in row:
        return f"seq {row['seq']}: {row['why']}"
    moved = f", {row['measured_bytes'] / 2**20:.1f} MiB measured" if "measured_bytes" in row else ""
    return (f"seq {row['seq']}, batch {row['batch']}: {row['time_us'] / 1e3:.3f} ms, "
            f"{row['predicted_bytes'] / 2**20:.1f} MiB predicted{moved}")


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path, nargs="?", help="what `bench paper --json` printed")
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--measure", choices=["ncu"])
    parser.add_argument("--profile", metavar="SHAPE", help="one gradient for ncu to look at, and nothing else")
    args = parser.parse_args(argv)
    if not args.profile and not args.out:
        parser.error("expected two files: the report and where its copy goes")
    return args


def main(argv=None):
    args = parse_args(argv)
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed: pip install torch numpy")
    if args.profile:
        profile_once(torch, protocol.Shape.parse(args.profile))
        return
    if args.out.exists():
        sys.exit(f"{args.out} is there already: results are never overwritten")
    report = json.loads(args.report.read_text())
    device = "cpu" if report["device"]["target"].startswith("cpu") else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"the report is of {report['device']['name']}, and PyTorch finds no CUDA device")
    if args.measure and device == "cpu":
        sys.exit("--measure ncu: the report is of a CPU; ncu knows GPUs alone")
    if args.measure and not shutil.which("ncu"):
        sys.exit("--measure ncu: there is no ncu on PATH; it comes with the CUDA toolkit as Nsight Compute")

    def time_of(shape):
        try:
            return measure_us(torch, shape, device, args.runs)
        finally:
            if device == "cuda":
                torch.cuda.empty_cache()

    for row in fill(report, f"PyTorch {torch.__version__}", time_of, measured_bytes if args.measure else None):
        print(describe(row), flush=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
