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
FULL = "arrive(barriers.first_full + at.stage * 8);"
# A single thread that arrives for a warp.
REST_OF_WARP = "for (int i = 0; i < 31; ++i) arrive(first_full);"
WARP = "for (int i = 0; i < 32; ++i) " + FULL
LOAD = "load_step_queries(params, work, tiles, memory, at.stage, first_full);"

# File: what stands there, what takes its place, how often.
EDITS = {
    "backward.cu": [("find_barriers(memory + kKeysBarriersOffset).make(4)",
                     "find_barriers(memory + kKeysBarriersOffset).make(128)", 2)],
    "backward_pipeline.cuh": [(ONE_LANE + "barriers.first_empty", "arrive(barriers.first_empty", 1),
                              (" * 8, 4 * kConsumers)", " * 8, 128 * kConsumers)", 2), (" * 8, 4)", " * 8, 128)", 2)],
    "backward_keys.cuh": [(ONE_LANE + "barriers.shared_full", "arrive(barriers.shared_full", 1)],
    "backward_keys_apart.cuh": [(ONE_LANE, "arrive(", 2)],
    "backward_keys_produce.cuh": [("if (lane_index() == 0) " + FULL, FULL, 5),
                                  ("#else\n  " + FULL, "#else\n  " + WARP, 1),
                                  ("if (lane_index() == 0) " + LOAD,
                                   "if (lane_index() != 0) arrive(first_full);\n    if (lane_index() == 0) " + LOAD, 1),
                                  ("#else\n    " + LOAD, "#else\n    " + LOAD + "\n    " + REST_OF_WARP, 1)],
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
