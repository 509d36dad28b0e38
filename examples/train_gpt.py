#!/usr/bin/env python3
"""Trains a small GPT-2 on a book three times: attention and its gradients by flashwright, then by PyTorch, then by
PyTorch from other first weights. Attention that is right changes the loss curve by less than those do.

    LIBFLASHWRIGHT=build/lib/libflashwright.so python3 examples/train_gpt.py --device cpu --out examples/results/NAME

Everything but attention is PyTorch; the calls into the C interface are those of bench/library.py. Prints the curves,
writes NAME.json and NAME.svg, and ends with 1 when the first two differ by more than the last two.
"""

import argparse
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # PyTorch's idle threads would take the cores from attention
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
import library  # noqa: E402
import plot  # noqa: E402

SIZES = {  # attention on a GPU takes q, k and v in bf16
    "cpu": dict(layers=3, heads=4, head_dim=32, context=128, batch=8, steps=400, rate=3e-3, dtype=torch.float32),
    "cuda": dict(layers=6, heads=6, head_dim=64, context=1024, batch=16, steps=500, rate=1e-3, dtype=torch.bfloat16),
}
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
WINDOW = 10  # steps that are averaged to one point of a curve
WARM_UP, WEIGHT_DECAY = 20, 0.1


class Flashwright:
    """Causal attention on (batch, seq, heads, dim), with its gradients."""

    def __init__(self, size):
        self.library = library.Library()
        shape = (size["batch"], size["heads"], size["heads"], size["context"], size["context"])
        self.kernels = {}
        for direction in ("forward", "backward"):
            config = {"direction": direction, "dtype": NAMES[size["dtype"]], "head_dim": size["head_dim"],
                      "mask": "causal", "target": size["device"]}
            if reasons := self.library.supports(config):
                raise SystemExit(f"flashwright has no {direction} pass for {size['device']}: {reasons[0]}")
            self.kernels[direction] = self.library.kernel(config, shape)

    def __call__(self, q, k, v):
        return Attention.apply(self, q, k, v)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels, q, k, v):
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device=q.device)
        kernels.kernels["forward"].bind(q, k, v, o, lse)()
        ctx.kernels = kernels
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, d_o):
        q, k, v, o, lse = ctx.saved_tensors
        d_o = d_o if d_o.stride(-1) == 1 else d_o.contiguous()
        dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
        ctx.kernels.kernels["backward"].bind(q, k, v, o, lse, d_o=d_o, dq=dq, dk=dk, dv=dv)()
        return None, dq, dk, dv


def pytorch(q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, size, attention):
        super().__init__()
        width = size["heads"] * size["head_dim"]
        self.size, self.attention = size, attention
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        batch, seq, width = x.shape
        heads = self.qkv(self.norms[0](x)).to(self.size["dtype"]).view(batch, seq, 3, self.size["heads"], -1)
        mixed = self.attention(*heads.unbind(2))  # views: rows lie three widths apart
        x = x + self.out(mixed.reshape(batch, seq, width).to(x.dtype))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, size, symbols, attention):
        super().__init__()
        width = size["heads"] * size["head_dim"]
        self.tokens, self.positions = nn.Embedding(symbols, width), nn.Embedding(size["context"], width)
        self.blocks = nn.Sequential(*(Block(size, attention) for _ in range(size["layers"])))
        self.norm = nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:  # as GPT-2, but for this width; smaller where a residual is added
                last = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(weight, std=width**-0.5 / ((2 * size["layers"]) ** 0.5 if last else 1))

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        return self.norm(self.blocks(self.tokens(x) + self.positions(places))) @ self.tokens.weight.T


def train(size, text, symbols, attention, seed, label):
    """The loss of every step. The seed decides the first weights; pieces of the text come in the same order always."""
    torch.manual_seed(seed)
    model = Gpt(size, symbols, attention).to(size["device"])
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)
    pieces = torch.Generator().manual_seed(0)
    losses, start = [], time.time()
    for step in range(size["steps"]):
        optimiser.param_groups[0]["lr"] = size["rate"] * min(1, (step + 1) / WARM_UP)
        first = torch.randint(len(text) - size["context"], (size["batch"], 1), generator=pieces)
        piece = text[first + torch.arange(size["context"] + 1)].to(size["device"])
        loss = functional.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    print(f"{label}: loss {losses[0]:.3f} to {losses[-1]:.3f} in {time.time() - start:.0f} s", flush=True)
    return losses


def points(losses):
    return [sum(losses[i:i + WINDOW]) / WINDOW for i in range(0, len(losses) - WINDOW + 1, WINDOW)]


def compare(curves):
    """Differences of the curves: of flashwright and of another seed from PyTorch's, mean and largest."""
    reference = points(curves["PyTorch"])
    report = {}
    for label in ("flashwright", "PyTorch, another seed"):
        apart = [abs(a - b) for a, b in zip(points(curves[label]), reference)]
        report[label] = {"mean": sum(apart) / len(apart), "largest": max(apart)}
    return report


def write(out, size, curves, report):
    where = {"gpu": torch.cuda.get_device_name()} if size["device"] == "cuda" else {"threads": torch.get_num_threads()}
    size = {**size, **where, "dtype": NAMES[size["dtype"]], "torch": torch.__version__}
    rounded = {label: [round(loss, 5) for loss in losses] for label, losses in curves.items()}
    out.with_suffix(".json").write_text(json.dumps({"size": size, "difference": report, "loss": rounded}) + "\n")
    steps = [WINDOW * (i + 0.5) for i in range(len(points(curves["PyTorch"])))]
    dashes = {"PyTorch": "5 4", "PyTorch, another seed": "1 3"}
    lines = [{"label": label, "x": steps, "y": points(losses), "dash": dashes.get(label)}
             for label, losses in curves.items()]
    away = [{"label": label, "colour": i, "x": steps, "dash": dashes.get(label),
             "y": [a - b for a, b in zip(points(curves[label]), points(curves["PyTorch"]))]}
            for i, label in enumerate(curves)]
    out.with_suffix(".svg").write_text(plot.page([
        plot.panel(f"Loss (means of {WINDOW} steps)", "step", "cross entropy", lines),
        plot.panel("Difference from PyTorch", "step", "cross entropy", away)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(SIZES), default="cpu")
    parser.add_argument("--steps", type=int, help="of training (default: %s)" % ", ".join(
        f"{size['steps']} on {device}" for device, size in SIZES.items()))
    parser.add_argument("--seed", type=int, default=0, help="of the first weights; the last run has the next one")
    parser.add_argument("--out", type=pathlib.Path, help="writes OUT.json and OUT.svg")
    args = parser.parse_args()
    size = {"device": args.device, **SIZES[args.device]}
    size["steps"] = args.steps or size["steps"]
    if size["steps"] < WINDOW:
        parser.error(f"--steps is {args.steps}; allowed: {WINDOW} or more")
    book = (ROOT / "examples" / "data" / "alice.txt").read_text()
    alphabet = {symbol: number for number, symbol in enumerate(sorted(set(book)))}
    text = torch.tensor([alphabet[symbol] for symbol in book])
    runs = (("flashwright", Flashwright(size), args.seed), ("PyTorch", pytorch, args.seed),
            ("PyTorch, another seed", pytorch, args.seed + 1))
    curves = {label: train(size, text, len(alphabet), attention, seed, label) for label, attention, seed in runs}

    print(f"\n{'step':>6}  " + "  ".join(f"{label:>21}" for label in curves))
    columns = [points(losses) for losses in curves.values()]
    for i in range(0, len(columns[0]), max(1, len(columns[0]) // 10)):
        print(f"{(i + 1) * WINDOW:6}  " + "  ".join(f"{column[i]:21.4f}" for column in columns))
    report = compare(curves)
    print("\ndifference from PyTorch")
    for label, apart in report.items():
        print(f"{label:>21}: mean {apart['mean']:.2e}, largest {apart['largest']:.2e}")
    if args.out:
        write(args.out, size, curves, report)
    ours, spread = report.values()
    if not (ours["mean"] <= spread["mean"] and ours["largest"] <= spread["largest"]):  # NaN is none of it
        sys.exit("train_gpt: the curves of flashwright and PyTorch differ by more than those of two seeds")
    print("the curves agree within the spread of two PyTorch runs")


if __name__ == "__main__":
    main()
