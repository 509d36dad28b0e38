"""What every peer is measured by: shapes, the count of operations, the timing loop, the tables.

Nothing here needs PyTorch or a GPU. A clock is any object with sample(fn, calls), which returns the
milliseconds that one call took, averaged over that many calls.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
import re
import statistics
import time

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
SHORT_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

SHAPE_TEXT = re.compile(
    r"(?P<dtype>\w+) b(?P<batch>\d+) heads (?P<heads_q>\d+)/(?P<heads_kv>\d+) seq (?P<seq_q>\d+)x(?P<seq_kv>\d+)"
    r" d (?P<dim_qk>\d+)/(?P<dim_v>\d+) (?P<mask>full|causal)( dropout (?P<dropout>[\d.]+))?")


@dataclasses.dataclass(frozen=True)
class Shape:
    dtype: str
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    dim_qk: int
    dim_v: int
    causal: bool
    dropout: float = 0.0

    def __str__(self):
        return (f"{self.dtype} b{self.batch} heads {self.heads_q}/{self.heads_kv} seq {self.seq_q}x{self.seq_kv}"
                f" d {self.dim_qk}/{self.dim_v} {'causal' if self.causal else 'full'} dropout {self.dropout}")

    @staticmethod
    def parse(text):
        """The inverse of str(); the dropout may be left out, and the dtype may be fp32, fp16 or bf16."""
        match = SHAPE_TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not a shape: '{text}'; for example: {OTHER_SHAPES[0]}")
        fields = match.groupdict()
        dtype = SHORT_DTYPES.get(fields["dtype"], fields["dtype"])
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype '{dtype}' in '{text}'; one of {', '.join(DTYPES)}")
        numbers = {name: int(value) for name, value in fields.items() if name not in ("dtype", "mask", "dropout")}
        return Shape(dtype=dtype, causal=fields["mask"] == "causal", dropout=float(fields["dropout"] or 0), **numbers)

    def flops(self, backward=False, density=None):
        """2 * batch * heads * seq_q * seq_kv * (dim_qk + dim_v), halved for causal, times 2.5 for the
        backward. Where only some blocks are computed, density is their share and replaces the half."""
        full = 2 * self.batch * self.heads_q * self.seq_q * self.seq_kv * (self.dim_qk + self.dim_v)
        share = density if density is not None else (0.5 if self.causal else 1.0)
        return full * share * (2.5 if backward else 1.0)

    def kv_bytes(self):
        """What a decode step cannot avoid reading."""
        return self.batch * self.heads_kv * self.seq_kv * (self.dim_qk + self.dim_v) * DTYPES[self.dtype]


def training_grid(dims=(64, 128, 256), seqs=(512, 1024, 2048, 4096, 8192, 16384), masks=("full", "causal"),
                  dtype="bfloat16", tokens=16384, width=2048):
    """The usual grid of training shapes: batch*seq and heads*dim are constant."""
    return [
        Shape(dtype, max(1, tokens // seq), width // dim, width // dim, seq, seq, dim, dim, mask == "causal")
        for dim in dims for mask in masks for seq in seqs
    ]


OTHER_SHAPES = [
    "float16 b4 heads 16/16 seq 4096x4096 d 128/128 causal dropout 0.0",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 32/32 causal dropout 0.0",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 40/40 causal dropout 0.0",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 80/80 causal dropout 0.0",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 96/96 causal dropout 0.0",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 160/160 causal dropout 0.0",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 192/192 causal dropout 0.0",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 192/128 causal dropout 0.0",
    "bfloat16 b4 heads 32/8 seq 4096x4096 d 128/128 causal dropout 0.0",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 64/64 causal dropout 0.1",
    "bfloat16 b4 heads 16/16 seq 4096x4096 d 128/128 causal dropout 0.1",
    "float16 b64 heads 16/16 seq 1024x1024 d 64/64 causal dropout 0.1",
    "float16 b64 heads 16/16 seq 1024x1024 d 64/64 full dropout 0.0",
    "bfloat16 b1 heads 32/8 seq 1x8192 d 128/128 full dropout 0.0",
    "bfloat16 b1 heads 32/8 seq 1x131072 d 128/128 full dropout 0.0",
    "bfloat16 b16 heads 32/8 seq 1x8192 d 128/128 full dropout 0.0",
    "bfloat16 b64 heads 32/8 seq 1x8192 d 128/128 full dropout 0.0",
]


@dataclasses.dataclass
class Candidate:
    """Something to time. The context is entered once around each sample, outside the timed part."""
    name: str
    fn: object
    context: object = contextlib.nullcontext


@dataclasses.dataclass
class Timing:
    """Milliseconds of one call: every sample, in the order taken."""
    samples_ms: list
    calls: int = 1

    @property
    def median_ms(self):
        return statistics.median(self.samples_ms)

    @property
    def best_ms(self):
        return min(self.samples_ms)

    @property
    def spread(self):
        """Distance of the quartiles over the median: 0.02 says that half the samples lie within about 1 %."""
        if len(self.samples_ms) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_ms, n=4, method="inclusive")
        return (high - low) / self.median_ms

    def rate(self, operations, best=False):
        """Operations per second."""
        return operations / ((self.best_ms if best else self.median_ms) * 1e-3)

    def record(self):
        return {"median_ms": round(self.median_ms, 5), "best_ms": round(self.best_ms, 5),
                "spread": round(self.spread, 4), "runs": len(self.samples_ms), "calls_per_run": self.calls}


class CpuClock:
    def sample(self, fn, calls):
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        return (time.perf_counter() - start) * 1e3 / calls


def rotations(count, turns):
    """The order of `count` candidates in each turn: each goes first equally often, so that none profits
    from a position."""
    return [[(turn + i) % count for i in range(count)] for turn in range(turns)]


def measure(candidates, clock, warmup=3, runs=10, min_sample_ms=0.0, max_calls=1000):
    """Times candidates interleaved: in every run each is sampled once, so drifting clocks and a busy
    machine meet all of them alike. A sample covers as many calls as min_sample_ms asks for.
    Returns name -> Timing."""
    calls = []
    for candidate in candidates:
        with candidate.context():
            for _ in range(warmup):
                candidate.fn()
            estimate = clock.sample(candidate.fn, 1)
        wanted = math.ceil(min_sample_ms / estimate) if estimate > 0 else max_calls
        calls.append(min(max(wanted, 1), max_calls))
    timings = [Timing([], n) for n in calls]
    for order in rotations(len(candidates), runs):
        for i in order:
            with candidates[i].context():
                timings[i].samples_ms.append(clock.sample(candidates[i].fn, calls[i]))
    return {candidate.name: timing for candidate, timing in zip(candidates, timings)}


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def table(headers, rows):
    """A Markdown table with aligned columns."""
    cells = [[str(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def write_json(path, environment, rows):
    text = json.dumps({"environment": environment, "rows": rows}, indent=1)
    pathlib.Path(path).write_text(text + "\n")


def numbers(text):
    """'64,128' -> [64, 128], for argparse."""
    return [int(part) for part in text.split(",") if part]


def words(text):
    return [part.strip() for part in text.split(",") if part.strip()]
