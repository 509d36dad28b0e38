#!/usr/bin/env python3
"""The picture of `flashwright bench paper`: time and memory traffic over the length.

    flashwright bench paper --json > NAME.json
    python3 bench/paper.py NAME.json NAME.svg

bench/peers/unfused.py completes NAME.json first, if PyTorch is there: the unfused backward pass is PyTorch's.
"""

import argparse
import json
import pathlib

import plot

MIB = 2**20
KERNELS = ("unfused", "tiled")


def series(rows, key, unit, label, **style):
    """A line for each kernel and direction that has values for `key`, in `unit`s and for one batch entry."""
    lines = []
    for number, kernel in enumerate(KERNELS):
        for direction in dict.fromkeys(row["direction"] for row in rows):
            same = [row for row in rows if row["kernel"] == kernel and row["direction"] == direction]
            found = [row for row in same if row.get(key)]
            by = " (PyTorch)" if any("by" in row for row in same) else ""  # bench/peers/unfused.py
            if found:
                lines.append({"label": f"{kernel} {direction}{by}{label}",
                              "colour": number + 2 * (direction == "backward"),
                              "x": [row["seq"] for row in found],
                              "y": [row[key] / row["batch"] / unit for row in found], **style})
    return lines


def picture(report):
    rows, config = report["rows"], report["config"]
    layer = f"{rows[0]['heads']} heads of {config['head_dim']}, {config.get('dtype', 'bf16')}"
    if config.get("mask", "none") != "none":
        layer += f", {config['mask']}"
    lengths = sorted({row["seq"] for row in rows})
    times = series(rows, "time_us", 1e3, "", marks=True)
    traffic = series(rows, "predicted_bytes", MIB, "", marks=True)
    traffic += series(rows, "measured_bytes", MIB, ", measured", dash="4 3")
    return plot.page([
        plot.panel(f"Time on {report['device']['name']}", "length", "ms per batch entry", times, True, lengths),
        plot.panel(f"Memory traffic: {layer}", "length", "MiB per batch entry", traffic, True, lengths)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path, help="what `bench paper --json` printed")
    parser.add_argument("svg", type=pathlib.Path)
    args = parser.parse_args()
    args.svg.write_text(picture(json.loads(args.report.read_text())))


if __name__ == "__main__":
    main()
