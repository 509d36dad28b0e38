"""Attention and its gradients in NumPy, float64: the formulas of docs/semantics.md, written down once more."""

import math

import numpy as np


def philox(counter, key):
    """Seven rounds over arrays of counters, four of uint64 that hold 32 bits each."""
    k0, k1 = key & 0xffffffff, key >> 32
    low = np.uint64(0xffffffff)
    for _ in range(7):
        a, b = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        shift = np.uint64(32)
        counter = [b >> shift ^ counter[1] ^ np.uint64(k0), b & low, a >> shift ^ counter[3] ^ np.uint64(k1), a & low]
        k0, k1 = k0 + 0x9E3779B9 & 0xffffffff, k1 + 0xBB67AE85 & 0xffffffff
    return counter


def kept(seed, offset, heads, seq_q, seq_kv, p):
    """(heads, seq_q, seq_kv) bools; heads: batch * heads_q."""
    threshold = min(max(int(256 * p + 0.5), 1), 255)
    key = seed + offset * 0x9E3779B97F4A7C15 & 0xffffffffffffffff
    head, query, kv = np.ogrid[:heads, :seq_q, :seq_kv]
    group = np.arange((seq_kv + 31) // 32)
    counter = [x.astype(np.uint64) for x in np.broadcast_arrays(query, group, head)]
    words = [word for call in (0, 1) for word in philox([*counter, np.full_like(counter[0], call)], key)]
    byte = sum((word[..., kv.ravel() // 32] >> (kv % 32).astype(np.uint64) & np.uint64(1)).astype(np.int64) << 7 - at
               for at, word in enumerate(words))
    return byte >= threshold


def visible(mask, seq_q, seq_kv, q_position):
    """(batch, heads, seq_q, seq_kv) or something that broadcasts to it."""
    if isinstance(mask, np.ndarray):
        return mask
    shift = seq_kv - seq_q if q_position is None else q_position
    p, j = np.arange(seq_q)[:, None] + shift, np.arange(seq_kv)[None]
    left, right = {"none": (-1, -1), "causal": (-1, 0)}.get(mask) or map(int, mask.split(":")[1].split(","))
    return ((left < 0) | (p - left <= j)) & ((right < 0) & (mask != "causal") | (j <= p + right))


class Reference:
    """One forward pass; `gradients` computes on from it."""

    def __init__(self, q, k, v, mask="none", softmax_scale=None, softcap=None, alibi_slopes=None, dropout=0.0, seed=0,
                 offset=0, q_position=None):
        self.q, self.k, self.v = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
        self.group = self.q.shape[1] // self.k.shape[1]
        keys, values = (np.repeat(x, self.group, axis=1) for x in (self.k, self.v))
        batch, heads, seq_q, dim = self.q.shape
        seq_kv = keys.shape[2]
        self.scale = 1 / math.sqrt(dim) if softmax_scale is None else softmax_scale
        scores = self.scale * self.q @ keys.swapaxes(2, 3)
        self.slope = np.ones_like(scores)
        if softcap is not None:
            self.slope = 1 - np.tanh(scores / softcap) ** 2
            scores = softcap * np.tanh(scores / softcap)
        if alibi_slopes is not None:
            shift = seq_kv - seq_q if q_position is None else q_position
            slopes = np.broadcast_to(np.asarray(alibi_slopes, np.float64), (batch, heads))[:, :, None, None]
            scores = scores + slopes * (np.arange(seq_kv)[None] - np.arange(seq_q)[:, None] - shift)
        scores = np.where(visible(mask, seq_q, seq_kv, q_position), scores, -np.inf)
        with np.errstate(invalid="ignore", divide="ignore"):
            top = np.where(np.isneginf(scores).all(3, keepdims=True), 0, scores.max(3, keepdims=True, initial=-np.inf))
            weights = np.exp(scores - top)
            total = weights.sum(3, keepdims=True)
            self.lse = (np.log(total) + top)[..., 0]
            self.weights = np.where(total > 0, weights / total, 0)
        self.factor = np.ones_like(scores)
        if dropout:
            drop = min(max(round(dropout * 256), 1), 255)
            bits = kept(seed, offset, batch * heads, seq_q, seq_kv, dropout)
            self.factor = bits.reshape(self.factor.shape) * 256 / (256 - drop)
        self.keys, self.values = keys, values
        self.o = ((self.weights * self.factor) @ values).transpose(0, 2, 1, 3)

    def gradients(self, d_o, d_lse=None):
        d_o = np.asarray(d_o, np.float64).transpose(0, 2, 1, 3)
        delta = (d_o * self.o.transpose(0, 2, 1, 3)).sum(3, keepdims=True)
        if d_lse is not None:
            delta = delta - np.asarray(d_lse, np.float64)[..., None]
        dv = (self.weights * self.factor).swapaxes(2, 3) @ d_o
        dp = self.factor * (d_o @ self.values.swapaxes(2, 3))
        ds = self.weights * (dp - delta) * self.slope * self.scale
        dq, dk = ds @ self.keys, ds.swapaxes(2, 3) @ self.q

        def over_group(x):
            return x.reshape(x.shape[0], x.shape[1] // self.group, self.group, *x.shape[2:]).sum(2)
        return [x.transpose(0, 2, 1, 3) for x in (dq, over_group(dk), over_group(dv))]
