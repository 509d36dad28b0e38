#!/usr/bin/env python3
"""Draws what compare.py measured on the training grid: rates over the length, a panel for each head dim.

    python3 bench/gpu/picture.py RESULTS.json PICTURE.svg
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "peers")]
import plot  # noqa: E402
import protocol  # noqa: E402

TOKENS, HIDDEN = 16384, 2048  # of the training grid


def on_grid(shape):
    return (shape.batch * shape.seq_q == TOKENS and shape.heads_q * shape.dim_qk == HIDDEN
            and shape.seq_q == shape.seq_kv and shape.heads_q == shape.heads_kv and shape.dim_qk == shape.dim_v
            and not shape.dropout)


def series(rows, dim):
    """Lines of one head dim: one colour for each program, dashed under a causal mask."""
    programs = []
    for _, row in rows:
        programs += [name for name in row["times"] if name not in programs]
    lines = []
    for causal in (False, True):
        for colour, name in enumerate(programs):
            points = sorted((shape.seq_q, row["times"][name]["tflops"]) for shape, row in rows
                            if shape.dim_qk == dim and shape.causal == causal and name in row["times"])
            if points:
                lines.append({"label": f"{name}, {'causal' if causal else 'full'}", "x": [x for x, _ in points],
                              "y": [y for _, y in points], "colour": colour, "dash": "5 3" if causal else None,
                              "marks": name == "flashwright"})
    return lines


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    rows = [(protocol.Shape.parse(row["shape"]), row) for row in report["rows"]]
    rows = [(shape, row) for shape, row in rows if on_grid(shape)]
    if not rows:
        sys.exit(f"{sys.argv[1]} has no shape of the training grid")
    direction, device = rows[0][1]["direction"], report["environment"]["device"]
    lengths = sorted({shape.seq_q for shape, _ in rows})
    panels = []
    for dim in sorted({shape.dim_qk for shape, _ in rows}):
        title = f"{direction}, head dim {dim}, {device}"
        panels.append(plot.panel(title, "length", "TFLOP/s", series(rows, dim), True, lengths))
    pathlib.Path(sys.argv[2]).write_text(plot.page(panels))


if __name__ == "__main__":
    main()
