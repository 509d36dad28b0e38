"""flashwright for transformers: attn_implementation="flashwright".

    import flashwright.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flashwright")

Importing this module registers the implementation and its mask function; only models that ask for it use it.
docs/python-transformers.md tells what is computed by which kernel.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import lru_cache, wraps
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils, modeling_utils
from transformers.generation import utils as generation_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ._torch_attention import attention
from ._torch_blocks import BlockLists, block_lists
from ._torch_sdpa import constant, features, refusal, say_once

__all__ = ["attention_forward", "attention_mask", "register"]
NAME = "flashwright"


# ---- Masks ---------------------------------------------------------------------------------------------------------
#
# None stands for what a layer says itself: all keys, the causal ones, or its window, the last query at the last key.
# Everything else is bools, (batch, 1, q, kv): padding, packed sequences, chunks, static caches. They become block lists
# once for all layers.


def _same_function(a: Any, b: Any) -> bool:
    """Whether two closures of one origin hold equal values: then they are the same mask."""
    if callable(a) and callable(b) and hasattr(a, "__code__") and hasattr(b, "__code__"):
        held = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (a, b)]
        return a.__code__ is b.__code__ and _same_function(*held)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same_function, a, b))
    return isinstance(a, (int, bool)) and type(a) is type(b) and a == b


@lru_cache(maxsize=None)
def _passes_window(config_class: type) -> bool:
    """Whether a model's layers give their window to the attention function; a few have it in their masks alone."""
    name = config_class.__module__.replace(".configuration_", ".modeling_")
    try:
        source = inspect.getsource(sys.modules[name])
    except (KeyError, OSError, TypeError):
        return False
    return re.search(r"attention_interface\((?:[^()]|\([^()]*\))*sliding_window=", source) is not None


def _is_plain(mask_function: Callable[..., Any], local_size: Optional[int], causal: bool, config: Any) -> bool:
    """Whether a mask is what a layer says itself, so that None can stand for it."""
    direction = "causal" if causal else "bidirectional"
    if local_size is None:
        return mask_function is getattr(masking_utils, direction + "_mask_function")
    make = getattr(masking_utils, f"sliding_window_{direction}_mask_function", None)
    return make is not None and _passes_window(type(config)) and _same_function(mask_function, make(local_size))


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
                   mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
                   attention_mask: Optional[Tensor] = None, local_size: Optional[int] = None,
                   allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False, config: Any = None,
                   **options: Any) -> Optional[Tensor]:
    """The mask function of transformers' AttentionMaskInterface: None, or bools (batch, 1, q, kv)."""
    # The values of padding are looked at, which a traced graph cannot do.
    padded = attention_mask is not None and (torch.compiler.is_compiling() or not bool(
        masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)[:, kv_offset:].all()))
    at_the_end = not isinstance(q_offset, Tensor) and q_offset + q_length == kv_offset + kv_length
    if not padded:
        if allow_is_causal_skip and at_the_end and _is_plain(mask_function, local_size, True, config):
            return None
        if allow_is_bidirectional_skip and (at_the_end or local_size is None) and _is_plain(
                mask_function, local_size, False, config):
            return None
    return masking_utils.sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, local_size=local_size, allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False, config=config, **options)


class _Rule(NamedTuple):
    """What a layer says itself: the sides of its window, -1 for an open one."""

    left: int
    right: int

    def text(self) -> str:
        if self == (-1, -1):
            return "none"
        return "causal" if self == (-1, 0) else f"window:{self.left},{self.right}"

    def dense(self, query: Tensor, key: Tensor) -> Tensor:
        """Bools (1, 1, q, kv)."""
        seq_q, seq_kv = query.size(2), key.size(2)
        places = torch.arange(seq_kv - seq_q, seq_kv, device=query.device)
        distance = torch.arange(seq_kv, device=query.device) - places[:, None]
        keep = torch.ones_like(distance, dtype=torch.bool)
        if self.left >= 0:
            keep = keep & (distance >= -self.left)
        if self.right >= 0:
            keep = keep & (distance <= self.right)
        return keep[None, None]


def _rule(module: torch.nn.Module, is_causal: Optional[bool], sliding_window: Optional[int]) -> _Rule:
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # A window of w keys counts the query's own.
    left = -1 if sliding_window is None else sliding_window - 1
    return _Rule(left, 0 if causal else left)


_made: Any = WeakIdKeyDictionary()  # the mask of a forward pass is the same tensor in all its layers


def _lists(mask: Tensor) -> BlockLists:
    if torch.compiler.is_compiling():
        return block_lists(mask)
    version = 0 if mask.is_inference() else mask._version  # of what was written into it since
    known = _made.get(mask)
    if known is None or known[0] != version:
        known = _made[mask] = version, block_lists(mask)
    return known[1]


# ---- Attention -----------------------------------------------------------------------------------------------------


def _same_document(query: Tensor, key: Tensor, ends_q: Tensor, ends_k: Tensor) -> Tensor:
    """Bools (1, 1, q, kv) for sequences that are packed in one row: cumulative lengths, as FlashAttention has them."""
    documents = [torch.searchsorted(ends, torch.arange(x.size(2), device=x.device, dtype=ends.dtype), right=True)
                 for x, ends in ((query, ends_q), (key, ends_k))]
    return (documents[0][:, None] == documents[1])[None, None]


def _refusal(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], kind: str,
             dropout: float, softcap: Optional[float], extra: "dict[str, Any]") -> str:
    """Why another implementation computes this layer; empty: ours does."""
    for name in ("s_aux", "position_bias", "head_mask"):
        if extra.get(name) is not None:
            return f"{name} of {type(module).__name__}"
    if mask is not None and mask.dtype != torch.bool:
        return f"an attention mask of {mask.dtype}; expected torch.bool"
    if query.dtype != key.dtype or query.dtype != value.dtype:
        return "query, key and value of different types"
    if query.size(0) != key.size(0) or key.shape[:3] != value.shape[:3] or query.size(1) % key.size(1):
        return "sizes that are broadcast"
    differentiated = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return refusal("transformers", query.dtype, constant(query.size(3)), constant(value.size(3)), kind,
                   query.device.type, features(dropout, softcap), differentiated)


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                      attention_mask: Optional[Tensor], dropout: float = 0.0, scaling: Optional[float] = None,
                      is_causal: Optional[bool] = None, sliding_window: Optional[int] = None,
                      softcap: Optional[float] = None, **extra: Any) -> "tuple[Tensor, None]":
    """The function of transformers' AttentionInterface: (batch, heads, seq, dim) in, (batch, seq, heads, dim) out.

    What the library refuses is computed by transformers' sdpa, or the model's eager attention where sdpa lacks it, and
    the reason is logged once.
    """
    rule = _rule(module, is_causal, sliding_window)
    mask = attention_mask
    if mask is None and extra.get("cu_seq_lens_q") is not None:
        mask = rule.dense(query, key) & _same_document(query, key, extra["cu_seq_lens_q"], extra["cu_seq_lens_k"])
    elif mask is not None and mask.dim() == 2:  # of models that make their own for kernels named "flash"
        mask = rule.dense(query, key) & mask[:, None, None, -key.size(2):].bool()
    kind = rule.text() if mask is None else "blocks"
    reason = _refusal(module, query, key, value, mask, kind, dropout, softcap, extra)
    if reason:
        say_once("transformers", reason)
        if mask is None and rule != (-1, -1):
            mask = rule.dense(query, key)
        return _fall_back(module, query, key, value, mask, dropout, scaling, softcap, extra)
    q, k, v = (x.transpose(1, 2) if x.stride(3) == 1 else x.transpose(1, 2).contiguous() for x in (query, key, value))
    return attention(q, k, v, kind if mask is None else _lists(mask), softmax_scale=scaling, softcap=softcap,
                     dropout=dropout), None


def _fall_back(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor],
               dropout: float, scaling: Optional[float], softcap: Optional[float],
               extra: "dict[str, Any]") -> "tuple[Tensor, None]":
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None or (softcap is None and extra.get("s_aux") is None and extra.get("head_mask") is None):
        return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling,
                                      is_causal=False, softcap=softcap, **extra)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    scaling = query.size(3) ** -0.5 if scaling is None else scaling
    out, _ = eager(module, query, key, value, mask, dropout=dropout, scaling=scaling, softcap=softcap, **extra)
    return out, None


# ---- Registration --------------------------------------------------------------------------------------------------


def register(name: str = NAME) -> None:
    """Makes attn_implementation=name known to transformers; importing this module has done it for "flashwright"."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    _names.add(name)


_names: "set[str]" = set()


def _tell_apart() -> None:
    """transformers 5 takes each name with "flash" in it for FlashAttention: it would load it, or put another in its
    place, and give it no masks but those of padding. Its three modules that decide this learn that ours is another."""
    for module in (modeling_utils, masking_utils, generation_utils):
        asked = getattr(module, "is_flash_attention_requested", None)
        if asked is not None:
            module.is_flash_attention_requested = _not_ours(asked)


def _not_ours(asked: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(asked)
    def is_flash_attention_requested(config: Any = None, requested_attention_implementation: Optional[str] = None,
                                     **options: Any) -> bool:
        name = requested_attention_implementation if config is None else config._attn_implementation
        return name not in _names and asked(config, requested_attention_implementation, **options)
    return is_flash_attention_requested


_tell_apart()
register()
