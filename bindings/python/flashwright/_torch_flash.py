"""PyTorch's registry of flash-attention kernels: torch.nn.attention.activate_flash_attention_impl("flashwright").

It serves scaled_dot_product_attention on CUDA tensors where PyTorch would take its own flash-attention kernel, so the
choice between backends (sdpa_kernel) stays PyTorch's. Older versions have no registry; `sdpa` works on all.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from ._torch_attention import rng_state
from ._torch_sdpa import features, refusal

NAME = "flashwright"
_WHERE = "_scaled_dot_product_flash_attention"


class _Handle:
    """What PyTorch keeps while the kernels are in place."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library: Optional[torch.library.Library] = library

    def remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None


def _refused(query: Tensor, value: Tensor, dropout_p: float, is_causal: bool, debug_mask: bool = False) -> bool:
    if debug_mask:
        return True
    # The same answer in both directions: the bits of dropout are drawn by the one kernel and drawn again by the other.
    return bool(refusal(_WHERE, query.dtype, query.size(3), value.size(3), "causal" if is_causal else "none",
                        query.device.type, features(dropout_p), True))


def _swap(*tensors: Tensor) -> "list[Tensor]":
    return [tensor.transpose(1, 2) for tensor in tensors]


def _forward(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
             return_debug_mask: bool = False, *, scale: Optional[float] = None) -> "tuple[Any, ...]":
    q, k, v = _swap(query, key, value)
    longest = (query.size(2), key.size(2))
    if _refused(query, value, dropout_p, is_causal, return_debug_mask):
        # One step below the operator that this function replaces, so the call cannot come back here.
        out, lse, seed, offset, debug = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, *longest, dropout_p, is_causal, return_debug_mask, scale=scale)
        return out.transpose(1, 2), lse, None, None, *longest, seed, offset, debug
    rng = rng_state(query)
    out, lse = torch.ops.flashwright.forward(q, k, v, None, rng if dropout_p > 0 else None, None, (), 0,
                                             "causal" if is_causal else "none", scale, None, dropout_p, False)
    nothing = torch.empty((), dtype=torch.uint64, device=query.device)
    return (out.transpose(1, 2), lse, None, None, *longest, rng.view(torch.uint64), nothing,
            query.new_empty((0,)))


def _backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
              cum_seq_q: Optional[Tensor], cum_seq_k: Optional[Tensor], max_q: int, max_k: int, dropout_p: float,
              is_causal: bool, philox_seed: Tensor, philox_offset: Tensor, *,
              scale: Optional[float] = None) -> "tuple[Tensor, ...]":
    d_out, q, k, v, o = _swap(grad_out, query, key, value, out)
    if _refused(query, value, dropout_p, is_causal):
        gradients = torch.ops.aten._flash_attention_backward(
            d_out, q, k, v, o, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
            philox_offset, scale=scale)
    else:
        gradients = torch.ops.flashwright.backward(
            d_out, None, q, k, v, o, logsumexp, None, philox_seed if dropout_p > 0 else None, None, (), 0,
            "causal" if is_causal else "none", scale, None, dropout_p, False, [True] * 3)
    return tuple(_swap(*gradients))


def _put_in_place() -> _Handle:
    library = torch.library.Library("aten", "IMPL", "CUDA")
    library.impl(_WHERE, _forward, "CUDA")
    library.impl(_WHERE + "_backward", _backward, "CUDA")
    return _Handle(library)


def register_flash_attention() -> bool:
    """Puts "flashwright" into PyTorch's registry; importing flashwright.torch has done it already.

    False where this version of PyTorch has no registry. It becomes active with
    torch.nn.attention.activate_flash_attention_impl("flashwright").
    """
    if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
        return False
    torch.nn.attention.register_flash_attention_impl(NAME, register_fn=_put_in_place)
    return True
