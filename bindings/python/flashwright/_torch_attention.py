"""flashwright.torch.attention."""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor

from ._errors import bad_type, bad_value
from ._torch_blocks import BlockLists, block_lists
from ._torch_ops import forward

Mask = Union[str, "tuple[int, int]", Tensor, BlockLists]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask = "none", *, softmax_scale: Optional[float] = None,
              softcap: Optional[float] = None, alibi_slopes: Optional[Tensor] = None, dropout: float = 0.0,
              rng: Optional[Tensor] = None, q_position: Optional[int] = None, deterministic: bool = False,
              return_lse: bool = False) -> Union[Tensor, "tuple[Tensor, Tensor]"]:
    """Exact attention with gradients: softmax(softmax_scale * q k^T, masked) v. Returns o, or (o, lse).

    q: (batch, seq_q, heads_q, head_dim). k: (batch, seq_kv, heads_kv, head_dim). v: (batch, seq_kv, heads_kv,
    head_dim_v). All of one type (float16, bfloat16, float32) and device, any strides but a contiguous last dimension.
    Under autocast they are cast to its type. o: (batch, seq_q, heads_q, head_dim_v); lse: float32 (batch, heads_q,
    seq_q). Both are differentiable, once; alibi_slopes get no gradient.

    mask: "none", "causal", "window:LEFT,RIGHT" or (LEFT, RIGHT) with -1 for an open side; or a tensor of bools that is
    true where a key is visible, (seq_q, seq_kv) or (batch, heads, seq_q, seq_kv) with batch and heads 1 or those of q;
    or `block_lists` of one, to make them once for many calls.
    q_position: position of query 0 among the keys; seq_kv - seq_q by default, 0 for top-left.
    dropout: probability to drop a weight. rng: two int64 beside q, {seed, offset}; `rng_state(q)` by default.
    deterministic: the same gradients, bit for bit, on every run; torch.use_deterministic_algorithms asks for it too.

    The other options are those of `flashwright.attention`, and so are the errors.
    """
    return attend(q, k, v, mask, softmax_scale, softcap, alibi_slopes, dropout, rng, q_position, deterministic,
                  return_lse)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, softmax_scale: Optional[float] = None,
           softcap: Optional[float] = None, alibi_slopes: Optional[Tensor] = None, dropout: float = 0.0,
           rng: Optional[Tensor] = None, q_position: Optional[int] = None, deterministic: bool = False,
           return_lse: bool = False, heads_first: bool = False) -> Union[Tensor, "tuple[Tensor, Tensor]"]:
    """`attention`; with heads_first q, k, v and o are (batch, heads, seq, dim)."""
    q, k, v = autocast(q, k, v)
    if alibi_slopes is not None and alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise bad_value("alibi_slopes", "a tensor that requires a gradient", "one that does not: slopes get none")
    if dropout > 0 and rng is None:
        rng = rng_state(q)
    lists: Optional[Tensor] = None
    sizes: "tuple[int, ...]" = ()
    if not isinstance(mask, str):
        if isinstance(mask, Tensor):
            mask = block_lists(mask)
        if isinstance(mask, BlockLists):
            lists, sizes, mask = mask.lists, mask.sizes, "blocks"
        elif isinstance(mask, tuple):
            mask = f"window:{mask[0]},{mask[1]}"
        else:
            raise bad_type("mask", f"a {type(mask).__name__}", "'none', 'causal', 'window:LEFT,RIGHT', (LEFT, RIGHT), "
                           "a tensor of bools or flashwright.torch.BlockLists")
    o, lse = forward(q, k, v, (alibi_slopes, rng, lists, sizes, q_position, mask, softmax_scale, softcap, dropout,
                               deterministic), return_lse, heads_first)
    return (o, lse) if return_lse else o


# Whether autocast is on for any device; PyTorch's own business, and without it each call looks closer.
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def autocast(q: Tensor, k: Tensor, v: Tensor) -> "tuple[Tensor, Tensor, Tensor]":
    """The tensors in the type that torch.autocast asks for."""
    if not torch.compiler.is_compiling() and not _any_autocast():
        return q, k, v
    device = q.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def rng_state(q: Tensor) -> Tensor:
    """{seed, offset} of one call's dropout, drawn from PyTorch's default generator of q's device.

    They are torch.randint(1 << 62, (2,), device=q.device): torch.manual_seed decides them, activation checkpoints draw
    the same ones again, and a CUDA graph draws new ones in each replay. docs/semantics.md says what bits they give.
    """
    return torch.randint(1 << 62, (2,), dtype=torch.int64, device=q.device)
