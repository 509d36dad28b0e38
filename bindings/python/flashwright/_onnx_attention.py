"""The operator Attention of ONNX, opsets 23 to 25, on NumPy arrays, by `flashwright.attention`.

What a kernel has no words for is said in others: boolean masks and -inf become block lists, finite numbers that are
added to the scores become columns of the queries and keys, valid lengths of the batch entries become launches of their
own, and head sizes are filled up with zeros.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ._attention import attention
from ._blocks import Blocks
from ._errors import UnsupportedError, bad_type, bad_value

_TYPES = ("float16", "bfloat16", "float32")
MAX_HEAD_DIM = 256
MAX_SCORES = 1 << 24  # of qk_matmul_output, which NumPy computes
DOUBLE = 11           # onnx.TensorProto.DOUBLE


class Attributes(NamedTuple):
    """Those of the node; None where it has none."""

    scale: float | None = None
    is_causal: int | None = None
    q_num_heads: int | None = None
    kv_num_heads: int | None = None
    softmax_precision: int | None = None
    softcap: float | None = None
    qk_matmul_output_mode: int | None = None
    left_window_size: int | None = None
    right_window_size: int | None = None


class Scores(NamedTuple):
    """What happens between the two products, for tensors (batch, seq, heads, dim)."""

    scale: float
    softcap: float
    left: int   # keys before and after a query's position that it sees; -1: open
    right: int
    position: int  # of query 0 among the keys
    visible: np.ndarray | None = None  # bools that broadcast to (batch, heads, seq_q, seq_kv)
    added: np.ndarray | None = None    # finite float32, the same


def refused_attributes(attributes: Attributes) -> list[str]:
    """Every reason why a node with these attributes is not computed."""
    if attributes.softmax_precision == DOUBLE:
        return ["softmax_precision: given DOUBLE; expected FLOAT, FLOAT16 or BFLOAT16, as kernels compute the softmax "
                "in float32"]
    return []


def onnx_attention(q: Any, k: Any, v: Any, attn_mask: Any, past_key: Any, past_value: Any, nonpad_kv_seqlen: Any,
                   attributes: Attributes, want_scores: bool) -> tuple[Any, Any, Any, Any]:
    """(Y, present_key, present_value, qk_matmul_output); the last is None where it is not wanted."""
    reasons = refused_attributes(attributes)
    if reasons:
        raise UnsupportedError("; ".join(reasons))
    _check_types(Q=q, K=k, V=v, past_key=past_key, past_value=past_value)
    rank = q.ndim
    if rank not in (3, 4) or k.ndim != rank or v.ndim != rank:
        raise bad_value("Q, K, V", f"ranks {q.ndim}, {k.ndim}, {v.ndim}", "3 or 4, the same for all")
    q_heads, kv_heads = attributes.q_num_heads, attributes.kv_num_heads
    if rank == 3 and not (q_heads and kv_heads):
        raise bad_value("q_num_heads, kv_num_heads", (q_heads, kv_heads), "both, for Q, K and V of rank 3")
    queries, keys, values = (_split(x, heads) for x, heads in ((q, q_heads), (k, kv_heads), (v, kv_heads)))
    if (past_key is None) != (past_value is None) or (past_key is not None and nonpad_kv_seqlen is not None):
        raise bad_value("past_key, past_value, nonpad_kv_seqlen", "another combination",
                        "both past tensors, or the lengths alone, or none")
    past = 0 if past_key is None else past_key.shape[2]
    if past_key is not None:
        keys = np.concatenate((_by_sequence(past_key), keys), axis=1)
        values = np.concatenate((_by_sequence(past_value), values), axis=1)
    scores = _scores(attributes, queries, keys, attn_mask, past)
    o, matrix = _compute(queries, keys, values, nonpad_kv_seqlen, scores,
                         (attributes.qk_matmul_output_mode or 0) if want_scores else None)
    o = o.reshape(*o.shape[:2], -1) if rank == 3 else o.transpose(0, 2, 1, 3)
    return o, keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3), matrix


def _check_types(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype.name not in _TYPES:
            raise bad_type(name, tensor.dtype.name, "float16, bfloat16 or float32")


def _by_sequence(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 2, 1, 3)


def _split(x: np.ndarray, heads: int | None) -> np.ndarray:
    """(batch, seq, heads, dim) of (batch, heads, seq, dim) or (batch, seq, heads * dim)."""
    return _by_sequence(x) if x.ndim == 4 else x.reshape(*x.shape[:2], heads, x.shape[2] // (heads or 1))


def _scores(attributes: Attributes, queries: np.ndarray, keys: np.ndarray, attn_mask: Any, past: int) -> Scores:
    left, right = (-1 if side is None else side for side in (attributes.left_window_size, attributes.right_window_size))
    if attributes.is_causal:
        right = 0
    scale = 1 / math.sqrt(queries.shape[3]) if attributes.scale is None else attributes.scale
    visible, added = None, None
    if attn_mask is not None:
        visible, added = _split_mask(attn_mask, (queries.shape[0], queries.shape[2], queries.shape[1], keys.shape[1]))
    return Scores(scale, attributes.softcap or 0.0, left, right, past, visible, added)


def _split_mask(mask: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Which keys are visible and what is added to their scores, each of rank 4; None where it says nothing."""
    given = (1,) * (4 - mask.ndim) + mask.shape
    if len(given) != 4 or any(mine not in (1, all_) for mine, all_ in zip(given[:3], shape)) or given[3] > shape[3]:
        raise bad_value("attn_mask", f"shape {mask.shape}", f"one that broadcasts to {shape}, or has fewer keys")
    if mask.dtype != np.bool_:
        mask = mask.astype(np.float32)
        if np.isnan(mask).any() or np.isposinf(mask).any():
            raise bad_value("attn_mask", "NaN or +inf", "finite numbers or -inf")
    mask = mask.reshape(given)
    hidden = False if mask.dtype == np.bool_ else -np.inf
    mask = np.pad(mask, [(0, 0)] * 3 + [(0, shape[3] - given[3])], constant_values=hidden)
    if mask.dtype == np.bool_:
        return (None if mask.all() else mask), None
    visible = ~np.isneginf(mask)
    # Clipped, so that scores beside the numbers that stand for -inf in some models stay finite.
    added = np.clip(np.where(visible, mask, 0), -1e37, 1e37)
    return (None if visible.all() else visible), (added if added.any() else None)


def _compute(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: Any, scores: Scores,
             mode: int | None) -> tuple[np.ndarray, np.ndarray | None]:
    if lengths is None:
        o, matrix = _one_length(q, k, v, scores), None
        if mode is not None:
            matrix = _score_matrix(q, k, scores, mode)
        return o, matrix
    if lengths.shape != (q.shape[0],) or (lengths < 0).any() or (lengths > k.shape[1]).any():
        raise bad_value("nonpad_kv_seqlen", lengths.tolist(), f"{q.shape[0]} numbers from 0 to {k.shape[1]}")
    if mode is not None:
        raise UnsupportedError("qk_matmul_output: given nonpad_kv_seqlen; expected keys of one length")
    # Each batch entry is a problem of its own length.
    out = [_one_length(q[b:b + 1], k[b:b + 1, :length], v[b:b + 1, :length], _of_entry(scores, b, length, q.shape[1]))
           for b, length in enumerate(lengths.tolist())]
    return np.concatenate(out), None


def _of_entry(scores: Scores, entry: int, length: int, seq_q: int) -> Scores:
    def cut(x: np.ndarray | None) -> np.ndarray | None:
        if x is None:
            return None
        return (x[entry:entry + 1] if x.shape[0] > 1 else x)[..., :length]
    return scores._replace(position=length - seq_q, visible=cut(scores.visible), added=cut(scores.added))


def _one_length(q: np.ndarray, k: np.ndarray, v: np.ndarray, scores: Scores) -> np.ndarray:
    kind, dim_v = q.dtype, v.shape[3]
    if scores.added is not None:
        q, k, v = _with_columns(q, k, v, scores)
        scores = scores._replace(scale=1.0, added=None)
    elif not (q.dtype == k.dtype == v.dtype):
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
    options: dict[str, Any] = {"softmax_scale": scores.scale, "softcap": scores.softcap or None}
    if scores.visible is None:
        options.update(mask=(scores.left, scores.right), q_position=scores.position)
    else:
        options.update(mask=_blocks(scores, q.shape[1], k.shape[1]))
    o = attention(_filled(q), _filled(k), _filled(v), **options)[..., :dim_v]
    return o.astype(kind, copy=False)


def _filled(x: np.ndarray) -> np.ndarray:
    """With zeros up to a head dim that kernels have; they change no score and no output."""
    rest = -x.shape[3] % 8
    if rest == 0 and x.strides[3] == x.itemsize:
        return x
    return np.pad(x, [(0, 0)] * 3 + [(0, rest)])


def _in_window(scores: Scores, seq_q: int, seq_kv: int) -> np.ndarray:
    distance = np.arange(seq_kv) - np.arange(seq_q)[:, None] - scores.position
    near = np.ones(distance.shape, np.bool_)
    if scores.left >= 0:
        near &= distance >= -scores.left
    if scores.right >= 0:
        near &= distance <= scores.right
    return near


def _blocks(scores: Scores, seq_q: int, seq_kv: int) -> Blocks:
    return Blocks.from_mask(np.ascontiguousarray(scores.visible & _in_window(scores, seq_q, seq_kv)))


def _with_columns(q: np.ndarray, k: np.ndarray, v: np.ndarray, scores: Scores) -> tuple[np.ndarray, ...]:
    """Queries and keys in float32 whose products are the scaled scores plus what is added to them.

    A matrix that is added is a product of two narrow ones where its rows are equal, or where queries or keys are few:
    of the rows' unit vectors and itself. These become further columns of q and k.
    """
    if scores.softcap:
        raise UnsupportedError("attn_mask: given numbers to add and softcap; expected bools, 0 or -inf, as kernels cap "
                               "the sum")
    added = scores.added
    assert added is not None
    if added.shape[2] > 1 and (added == added[:, :, :1]).all():
        added = added[:, :, :1]
    rows, columns = added.shape[2:]
    if rows <= columns:  # (batch, seq, heads, rank) each; a row of ones for rows that are equal
        of_q = np.ones((1, q.shape[1], 1, 1)) if rows == 1 else np.eye(rows)[None, :, None]
        of_k = added.transpose(0, 3, 1, 2)
    else:
        of_q, of_k = added.transpose(0, 2, 1, 3), np.eye(columns)[None, :, None]
    room = (MAX_HEAD_DIM - q.shape[3]) // 8 * 8
    if of_q.shape[3] > room:
        raise UnsupportedError(f"attn_mask: given numbers to add that differ in {rows} queries and {columns} keys; "
                               f"expected bools, 0 or -inf, or at most {room} of the one or the other at head size "
                               f"{q.shape[3]}")
    group = q.shape[2] // k.shape[2]
    if of_k.shape[2] > 1 and group > 1:  # keys of their own for each query head
        k, v = (np.repeat(x, group, axis=2) for x in (k, v))

    def beside(x: np.ndarray, more: np.ndarray) -> np.ndarray:
        more = np.broadcast_to(more, (*x.shape[:3], more.shape[3]))
        return np.concatenate((x, more), axis=3, dtype=np.float32)
    return beside(q.astype(np.float32) * np.float32(scores.scale), of_q), beside(k, of_k), v.astype(np.float32)


def _score_matrix(q: np.ndarray, k: np.ndarray, scores: Scores, mode: int) -> np.ndarray:
    """The intermediate values that no kernel ever holds: 0 products, 1 with softcap, 2 with the mask, 3 weights."""
    count = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[1]
    if count > MAX_SCORES:
        raise UnsupportedError(f"qk_matmul_output: given {count} scores; expected at most {MAX_SCORES}")
    keys = np.repeat(k, q.shape[2] // k.shape[2], axis=2).astype(np.float32)
    out = np.einsum("bihd,bjhd->bhij", q.astype(np.float32) * np.float32(scores.scale), keys)
    if mode >= 1 and scores.softcap:
        out = np.tanh(out / np.float32(scores.softcap)) * np.float32(scores.softcap)
    if mode >= 2:
        visible = _in_window(scores, q.shape[1], k.shape[1])
        visible = np.broadcast_to(visible if scores.visible is None else scores.visible & visible, out.shape)
        out = np.where(visible, out if scores.added is None else out + scores.added, np.float32(-np.inf))
    if mode == 3:
        top = out.max(axis=3, keepdims=True, initial=-np.inf)
        weights = np.where(visible, np.exp(out - np.where(np.isneginf(top), 0, top)), 0)
        total = weights.sum(axis=3, keepdims=True)
        out = weights / np.where(total == 0, 1, total)
    return out.astype(q.dtype)
