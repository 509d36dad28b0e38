"""Attention and its gradients on NumPy arrays, checked against float64; the same lines work on PyTorch and CuPy."""

import flashwright
import numpy as np

rng = np.random.default_rng(0)
q = rng.standard_normal((2, 256, 8, 64), dtype=np.float32)  # (batch, seq_q, heads_q, head_dim)
k = rng.standard_normal((2, 256, 2, 64), dtype=np.float32)  # two key heads for eight query heads
v = rng.standard_normal((2, 256, 2, 64), dtype=np.float32)

reasons = flashwright.supports(flashwright.Config(64, dtype="fp32", mask="causal", target="cpu"))
if reasons:
    raise SystemExit("skipped: python_attention: " + reasons[0])

o, lse = flashwright.attention(q, k, v, mask="causal", return_lse=True)
d_o = np.ones_like(o)
dq, dk, dv = flashwright.attention_backward(d_o, q, k, v, o, lse, mask="causal")

keys, values = (np.repeat(x.astype(np.float64), 4, axis=2) for x in (k, v))
scores = np.einsum("bihd,bjhd->bhij", q, keys) / np.sqrt(64)
weights = np.exp(np.where(np.tri(256, dtype=bool), scores, -np.inf))
weights /= weights.sum(axis=3, keepdims=True)
exact = np.einsum("bhij,bjhd->bihd", weights, values)
exact_dv = np.einsum("bhij,bihd->bjhd", weights, d_o).reshape(2, 256, 2, 4, 64).sum(axis=3)
for name, error in (("o", np.abs(o - exact).max()), ("dv", np.abs(dv - exact_dv).max())):
    print(f"{name}: largest error against float64 {error:.1e}")
    if error > 1e-4:
        raise SystemExit(f"{name} is wrong")

try:
    flashwright.attention(q, k.astype(np.float16), v)
except flashwright.FlashwrightError as error:
    print(f"{type(error).__name__}: {error}")

shape = flashwright.Shape(batch=2, heads_q=8, heads_kv=2, seq_q=256, seq_kv=256)
why = flashwright.explain(flashwright.Config(64, dtype="fp32", mask="causal", target="cpu"), shape)
print(f"schedule {why['schedule']}, chosen by {why['chosen_by']}")
