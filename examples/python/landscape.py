"""A kernel from its text to tuned: what is emitted, which schedules there are, how fast each is. Read it cell by cell.

    python landscape.py [SECONDS] [PICTURE]     # 20 s of tuning by default; the picture needs matplotlib
"""

import re
import statistics
import sys

import flashwright

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
config = flashwright.Config(64, dtype="fp32", mask="causal", target="cpu")
shape = flashwright.Shape(batch=1, heads_q=4, heads_kv=4, seq_q=512, seq_kv=512)
reasons = flashwright.supports(config)
if reasons:
    raise SystemExit("skipped: python_landscape: " + reasons[0])

# %% The kernel is a text: for the CPU LLVM's IR, with what it does written above each part.
text = flashwright.emit(config, shape)
print(f"{len(text.splitlines())} lines of IR; they begin")
print("\n".join("    " + line[:100] for line in text.splitlines()[:12]))

# %% Its schedule, the numbers that change its speed and never its meaning, is a guess until something was measured.
before = flashwright.explain(config, shape)
print(f"\nbefore: schedule {before['schedule']}, chosen by {before['chosen_by']}")


# %% Tuning tries others, each against the default in turn.
def progress(done, total, event):
    if done == total or done % 20 == 0:
        print(f"  {done} of {total}", file=sys.stderr)


report = flashwright.tune(config, shape, budget_s=seconds, progress=progress)
after = flashwright.explain(config, shape)
print(f"after:  schedule {after['schedule']}, chosen by {after['chosen_by']}")

# %% The landscape: the best time over the two tile sizes, whatever the other knobs are.
times = {}  # schedule -> times of its trials
for trial in report["trials"]:
    if trial["status"] == "ok":
        times.setdefault(trial["schedule"], []).append(trial["time_us"])
if not times:
    raise SystemExit("nothing was measured: give it more seconds")
best = {}  # (tile_q, tile_kv) -> (time, schedule)
for schedule, samples in times.items():
    tile = tuple(map(int, re.match(r"q(\d+)\.kv(\d+)", schedule).groups()))
    best[tile] = min(best.get(tile, (float("inf"), "")), (statistics.median(samples), schedule))
rows, columns = (sorted({tile[i] for tile in best}) for i in range(2))
print(f"\nbest us for tile_q (down) and tile_kv (across), of {len(times)} schedules")
print("      " + "".join(f"{column:>8}" for column in columns))
for row in rows:
    print(f"{row:>6}" + "".join(f"{best[row, c][0]:>8.0f}" if (row, c) in best else f"{'.':>8}" for c in columns))
for time_us, schedule in sorted(best.values())[:3]:
    print(f"{time_us:8.0f} us  {schedule}")

# %% The same as a picture.
if len(sys.argv) > 2:
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("the picture needs matplotlib; everything else is above") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot
    grid = [[best.get((row, column), (float("nan"),))[0] for column in columns] for row in rows]
    image = pyplot.imshow(grid, cmap="viridis_r")
    pyplot.xticks(range(len(columns)), columns)
    pyplot.yticks(range(len(rows)), rows)
    pyplot.xlabel("tile_kv")
    pyplot.ylabel("tile_q")
    pyplot.colorbar(image, label="us")
    pyplot.savefig(sys.argv[2])
