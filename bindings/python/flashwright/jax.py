"""Attention for JAX: traced, differentiated and vectorised, on the CPU and on CUDA.

    import flashwright.jax
    o = flashwright.jax.attention(q, k, v, mask="causal")  # (batch, seq, heads, dim)

Under `jax.jit` the kernel is called by XLA through its foreign function interface, without Python, on XLA's stream.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

try:
    import jax
    import jax.ffi
    import jax.numpy as jnp
except ImportError as _error:
    raise ImportError(f"flashwright.jax needs the package jax, 0.6 or newer: {_error}") from _error

import numpy as np

from . import _native
from ._attention import position_of, request_fields
from ._blocks import Blocks
from ._config import json_text
from ._errors import bad_type, bad_value

_TARGET = "flashwright_attention"
_TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

for _platform in ("cpu", "CUDA"):
    _capsule = _native.xla_handler(_platform == "CUDA")
    # On a GPU kernels are compiled and loaded when the program starts, before its launches.
    jax.ffi.register_ffi_target(
        _TARGET, {"initialize": _capsule, "execute": _capsule} if _platform == "CUDA" else _capsule, platform=_platform)


class _Options(NamedTuple):
    """What is fixed when a call is traced."""

    mask: str | tuple[int, int]
    softmax_scale: float | None
    softcap: float | None
    dropout: float
    deterministic: bool
    q_position: int | None
    return_lse: bool
    block_sizes: tuple[int, ...]


class _Extras(NamedTuple):
    """Operands besides q, k and v that have no gradient; None or empty where there are none."""

    rng_state: Any            # uint32 (4): seed and offset, low halves first
    alibi_slopes: Any         # float32 (batch, heads_q)
    blocks: tuple[Any, ...]   # in the order of _native.BlockLists.array_names()


def _call(direction: str, options: _Options, extras: _Extras, operands: dict[str, Any],
          results: dict[str, jax.ShapeDtypeStruct]) -> list[Any]:
    q, v = operands["q"], operands["v"]
    fields = request_fields(direction, options.mask, options.dropout, options.softmax_scale, options.softcap,
                            extras.alibi_slopes is not None, options.deterministic)
    fields.update(dtype=_TYPES[q.dtype.name], head_dim=q.shape[3], head_dim_v=v.shape[3])
    text = json_text("config", fields)
    _native.normalise(text[:-1] + ',"target":"sm_80"}')  # its message for a field; a target that needs no device
    given = {**operands, "alibi_slopes": extras.alibi_slopes, "rng_state": extras.rng_state}
    named = [(name, value) for name, value in given.items() if value is not None]
    named += [("blocks", value) for value in extras.blocks]
    attributes: dict[str, Any] = {"fields": text[1:-1], "operands": " ".join(name for name, _ in named),
                                  "results": " ".join(results)}
    if options.q_position is not None:
        attributes["q_position"] = np.int64(options.q_position)
    if options.block_sizes:
        attributes["block_sizes"] = np.array(options.block_sizes, np.int64)
    call = jax.ffi.ffi_call(_TARGET, list(results.values()), vmap_method="broadcast_all")
    return call(*(value for _, value in named), **attributes)


def _forward(options: _Options, extras: _Extras, q: Any, k: Any, v: Any, lse: bool) -> list[Any]:
    results = {"o": jax.ShapeDtypeStruct((*q.shape[:3], v.shape[3]), q.dtype)}
    if lse:
        results["lse"] = jax.ShapeDtypeStruct((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
    return _call("forward", options, extras, {"q": q, "k": k, "v": v}, results)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: _Options, extras: _Extras, q: Any, k: Any, v: Any) -> Any:
    out = _forward(options, extras, q, k, v, options.return_lse)
    return tuple(out) if options.return_lse else out[0]


def _attention_forward(options: _Options, extras: _Extras, q: Any, k: Any, v: Any) -> Any:
    o, lse = _forward(options, extras, q, k, v, True)
    return (o, lse) if options.return_lse else o, (extras, q, k, v, o, lse)


def _attention_backward(options: _Options, residuals: Any, gradient: Any) -> Any:
    extras, q, k, v, o, lse = residuals
    d_o, d_lse = gradient if options.return_lse else (gradient, None)
    operands = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "d_o": d_o, "d_lse": d_lse}
    results = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    return (None, *_call("backward", options, extras, operands, results))  # None: 0 for the extras


_attention.defvjp(_attention_forward, _attention_backward)


def attention(q: Any, k: Any, v: Any, mask: str | tuple[int, int] | Blocks = "none", *,
              softmax_scale: float | None = None, softcap: float | None = None, alibi_slopes: Any = None,
              dropout: float = 0.0, key: Any = None, q_position: int | None = None, deterministic: bool = False,
              return_lse: bool = False) -> Any:
    """Exact attention: softmax(softmax_scale * q k^T, masked) v. Returns o, or (o, lse) with return_lse.

    It works under jit, grad, vjp, and vmap over any of q, k, v, alibi_slopes and key. The gradients of q, k and v are
    kernels as well (reverse mode; not differentiated again); the slopes have none. Tensors are float16, bfloat16 or
    float32, the same for all, in the order of JAX's own attention:

    q: (batch, seq_q, heads_q, head_dim). k: (batch, seq_kv, heads_kv, head_dim). v: (batch, seq_kv, heads_kv,
    head_dim_v). heads_q is a multiple of heads_kv. o: (batch, seq_q, heads_q, head_dim_v); lse: float32 (batch,
    heads_q, seq_q).

    mask: "none", "causal", "window:LEFT,RIGHT" or (LEFT, RIGHT) with -1 for an open side, or `flashwright.Blocks` in
    host memory. q_position: position of query 0 among the keys; seq_kv - seq_q by default, 0 for top-left.
    softmax_scale, softcap, dropout: Python numbers, as in `flashwright.attention`.
    alibi_slopes: float32 (heads_q) or (batch, heads_q).
    key: a key of jax.random, which says the weights that dropout drops. deterministic: the same bits on every run.

    Raises FlashwrightTypeError and FlashwrightValueError while it is traced. What only the library can tell, such as a
    kernel that no family has, is a jax.errors.JaxRuntimeError with its message.
    """
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    _check(q, k, v)
    if alibi_slopes is not None:
        alibi_slopes = jnp.broadcast_to(jnp.asarray(alibi_slopes, jnp.float32), (q.shape[0], q.shape[2]))
    blocks, sizes = _lists(mask, q) if isinstance(mask, Blocks) else ((), ())
    for name, value in (("softmax_scale", softmax_scale), ("softcap", softcap), ("dropout", dropout)):
        if isinstance(value, jax.core.Tracer):
            raise bad_type(name, "a traced value", "a Python number: kernels are compiled for it")
    options = _Options("blocks" if blocks else mask, softmax_scale, softcap, dropout, deterministic,
                       position_of(q_position), return_lse, sizes)
    extras = _Extras(_rng_state(key) if dropout else None, alibi_slopes, blocks)
    return _attention(options, jax.lax.stop_gradient(extras), q, k, v)


def _check(q: Any, k: Any, v: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise bad_value(name, f"rank {x.ndim}", "rank 4: (batch, seq, heads, dim)")
        if x.dtype.name not in _TYPES or x.dtype != q.dtype:
            raise bad_type(name, x.dtype.name,
                           "float16, bfloat16 or float32" if x is q else f"{q.dtype.name}, the type of q")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise bad_value("k", f"shape {k.shape}", f"({q.shape[0]}, seq_kv, heads_kv, {q.shape[3]})")
    if v.shape[:3] != k.shape[:3]:
        raise bad_value("v", f"shape {v.shape}", f"({', '.join(map(str, k.shape[:3]))}, head_dim_v)")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2] != 0:
        raise bad_value("k", f"{k.shape[2]} heads", f"a number that divides {q.shape[2]}, the heads of q")


def _rng_state(key: Any) -> Any:
    if key is None:
        raise bad_type("key", "None", "a key of jax.random, as dropout is not 0")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    # 64 bits of the key's own generator are the seed; the offset is 0.
    return jnp.concatenate((jax.random.bits(key, (2,), jnp.uint32), jnp.zeros(2, jnp.uint32)))


def _lists(mask: Blocks, q: Any) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    if mask.on_cuda:
        raise bad_value("mask", "block lists in GPU memory", "lists in host memory, which XLA copies")
    batch, heads = mask.lists.sizes[4:]
    if batch not in (1, q.shape[0]) or heads not in (1, q.shape[2]):
        raise bad_value("mask", f"block lists of batch {batch} and {heads} heads",
                        f"1 of each, or those of q: {q.shape[0]} and {q.shape[2]}")
    arrays = []
    for address, count in mask.lists.host_arrays():
        memory = (ctypes.c_int32 * count).from_address(address) if count else np.zeros(0)
        arrays.append(jnp.asarray(np.array(memory, np.int32)))  # a copy: XLA may keep it beyond the lists
    return tuple(arrays), tuple(mask.lists.sizes)
