#!/usr/bin/env python3
"""Templates whose warps arrive at mbarriers with every lane, for racecheck.

    python3 bench/gpu/every_lane_arrives.py OUT && FLASHWRIGHT_TEMPLATE_DIR=OUT ...

In the gradient kernels of sm90 a warp meets in __syncwarp, and one lane arrives for all. That orders what the others
did before, but compute-sanitizer's racecheck does not follow it and reports hazards. With these templates it has
nothing to report, and whatever it reports is a race. Fails when a line that is to be changed is not there.
"""

import pathlib
import shutil
import sys

TEMPLATES = pathlib.Path(__file__).resolve().parents[2] / "templates"
ONE_LANE = "if (lane_index() == 0) arrive("
TELLERS = "if (warp_index() % 4 != 0 || lane_index() == 0) arrive("  # warp 0 of the producer has one who tells

# File: what stands there, what takes its place, how often.
EDITS = {
    "backward.cu": [("find_barriers(memory + kKeysBarriersOffset).make(4)",
                     "find_barriers(memory + kKeysBarriersOffset).make(97)", 1)],
    "backward_pipeline.cuh": [(ONE_LANE + "barriers.first_empty", "arrive(barriers.first_empty", 1),
                              (" * 8, 4 * kConsumers)", " * 8, 128 * kConsumers)", 2), (" * 8, 4)", " * 8, 128)", 2)],
    "backward_keys.cuh": [(ONE_LANE + "barriers.shared_full", "arrive(barriers.shared_full", 1)],
    "backward_keys_apart.cuh": [(ONE_LANE, "arrive(", 2)],
    "backward_keys_produce.cuh": [(ONE_LANE + "barriers.first_full", TELLERS + "barriers.first_full", 4)],
}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    shutil.copytree(TEMPLATES, out, dirs_exist_ok=True)
    for name, edits in EDITS.items():
        path = out / "sm90" / name
        text = path.read_text()
        for old, new, count in edits:
            if text.count(old) != count:
                sys.exit(f"{path.name} has '{old}' {text.count(old)} times instead of {count}")
            text = text.replace(old, new)
        path.write_text(text)


if __name__ == "__main__":
    main()
