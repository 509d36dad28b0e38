"""flashwright.torch over the grid of sizes that attention libraries are tested with, against float64.

    python3 torch_grid.py                    the whole grid on the GPU: 1800 cases, forward and backward
    python3 torch_grid.py --part 3/8         every eighth of them: some processes at once take less time than one
    python3 torch_grid.py --device cpu --count 20

Head dims 32 to 256; lengths 1 to 2048, odd ones among them; causal, windows and none; as many, fewer and one head of
keys; dropout; fp16 and bf16. A case fails when its error is larger than docs/semantics.md allows: twice that of the
unfused computation in the same type (gradients: three times), and some. Exit status 1 when one does.
"""

import argparse
import itertools
import math
import random
import sys
import time

import flashwright
import flashwright.torch as ft
import torch
from reference import kept

DIMS = (32, 40, 64, 72, 96, 128, 160, 192, 224, 256)
LENGTHS = ((1, 1), (1, 147), (1, 2048), (3, 799), (64, 128), (113, 203), (128, 217), (127, 512), (108, 256), (256, 512),
           (512, 256), (1023, 1024), (1024, 1023), (1024, 1024), (2048, 2048))
MASKS = ("none", "causal", "window")
WINDOWS = ((64, 0), (17, 33), (-1, 12), (200, 200))
HEADS_KV = (6, 2, 1)
DROPOUT = (0.0, 0.17)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
BATCH, HEADS = 2, 6
SEED, OFFSET = 1234, 56


def cases():
    """(dtype, dim, mask, dropout, (seq_q, seq_kv), heads_kv); heads and windows change from one to the next."""
    turn = itertools.count()
    for dtype, dim, mask, dropout, lengths in itertools.product(DTYPES, DIMS, MASKS, DROPOUT, LENGTHS):
        at = next(turn)
        window = WINDOWS[at // 2 % len(WINDOWS)]
        yield dtype, dim, window if mask == "window" else mask, dropout, lengths, HEADS_KV[at % len(HEADS_KV)]


def visible(mask, seq_q, seq_kv, device):
    left, right = {"none": (-1, -1), "causal": (-1, 0)}.get(mask, mask)
    distance = torch.arange(seq_kv, device=device) - torch.arange(seq_q, device=device)[:, None] - (seq_kv - seq_q)
    keep = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        keep &= distance >= -left
    if right >= 0:
        keep &= distance <= right
    return keep


def unfused(kind, q, k, v, d_o, keep, factor):
    """[o, dq, dk, dv] by the formulas of docs/semantics.md, each step stored in one type; (batch, seq, heads, dim)."""
    group, scale = q.size(2) // k.size(2), 1 / math.sqrt(q.size(3))
    q, k, v, d_o = (x.to(kind).transpose(1, 2) for x in (
        q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2), d_o))
    scores = (q @ k.mT * scale).masked_fill(~keep, -math.inf)
    weights = scores.softmax(-1).masked_fill(~keep.any(-1, keepdim=True), 0)
    factor = 1 if factor is None else factor.to(kind)
    o = weights * factor @ v
    delta = (d_o * o).sum(-1, keepdim=True)
    d_scores = weights * (factor * (d_o @ v.mT) - delta) * scale

    def of_group(x):
        return x.unflatten(1, (-1, group)).sum(2)
    gradients = d_scores @ k, of_group(d_scores.mT @ q), of_group((weights * factor).mT @ d_o)
    return [x.transpose(1, 2) for x in (o, *gradients)]


def error_and_bound(mine, exact, plain, times):
    error = (mine.double() - exact).abs().max().item()
    largest = exact.abs().max().item() + 0.3
    ulp = 2.0 ** math.floor(math.log2(largest)) * torch.finfo(mine.dtype).eps
    return error, times * (plain.double() - exact).abs().max().item() + ulp


def run(case, device):
    """A list of what is wrong."""
    dtype, dim, mask, dropout, (seq_q, seq_kv), heads_kv = case
    generator = torch.Generator().manual_seed(hash(case[1:2] + case[4:]) & 0xffffff)
    sizes = ((seq_q, HEADS), (seq_kv, heads_kv), (seq_kv, heads_kv), (seq_q, HEADS))
    q, k, v, d_o = (torch.randn(BATCH, seq, heads, dim, generator=generator).to(device, DTYPES[dtype])
                    for seq, heads in sizes)
    keep, factor, rng = visible(mask, seq_q, seq_kv, device), None, None
    if dropout:
        bits = torch.from_numpy(kept(SEED, OFFSET, BATCH * HEADS, seq_q, seq_kv, dropout))
        drop = round(256 * dropout)
        factor = bits.view(BATCH, HEADS, seq_q, seq_kv).to(device) * 256 / (256 - drop)
        rng = torch.tensor([SEED, OFFSET], device=device)

    leaves = [x.requires_grad_() for x in (q, k, v)]
    o = ft.attention(*leaves, mask, dropout=dropout, rng=rng)
    mine = [o.detach(), *torch.autograd.grad(o, leaves, d_o)]
    with torch.no_grad():
        exact, plain = (unfused(kind, q, k, v, d_o, keep, factor) for kind in (torch.float64, q.dtype))
    wrong = []
    for name, times, *tensors in zip(("o", "dq", "dk", "dv"), (2, 3, 3, 3), mine, exact, plain):
        error, bound = error_and_bound(*tensors, times)
        if not error <= bound:
            wrong.append(f"{name} is off by {error:.2e}, allowed {bound:.2e}")
    return wrong


def prepare(chosen, device):
    """All kernels at once, on all cores."""
    configs = {(direction, dtype, dim, "window:64,64" if isinstance(mask, tuple) else mask, dropout)
               for dtype, dim, mask, dropout, *_ in chosen for direction in ("forward", "backward")}
    names = ("direction", "dtype", "head_dim", "mask", "dropout")
    rows = flashwright.prepare([{**dict(zip(names, config)), "target": device} for config in sorted(configs)])
    print(f"{len(rows)} kernels")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--count", type=int, help="so many cases, taken at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="I/N: the cases I, I + N, ...")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    chosen = list(cases())
    if options.count:
        chosen = random.Random(options.seed).sample(chosen, options.count)
    part, parts = map(int, options.part.split("/"))
    chosen = chosen[part - 1::parts]
    started = time.time()
    prepare(chosen, options.device)
    failed = 0
    for done, case in enumerate(chosen):
        if done % 100 == 0:
            print(f"{done} cases, {time.time() - started:.0f} s", flush=True)
        wrong = run(case, options.device)
        if wrong:
            failed += 1
            print(f"FAILED {case}: {'; '.join(wrong)}", flush=True)
    print(f"{len(chosen)} cases, {failed} failed, {time.time() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
