"""In the place of torch.nn.functional.scaled_dot_product_attention, with PyTorch's own kernel for what is refused."""

from __future__ import annotations

import contextlib
import logging
from operator import index
from typing import Any, Iterator, Optional

import torch
from torch import Tensor

from ._questions import supports
from ._torch_attention import attend, autocast
from ._torch_blocks import block_lists

_logger = logging.getLogger("flashwright")
_original = torch.nn.functional.scaled_dot_product_attention
_TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
_MAX_ANSWERS = 4096
_answers: dict[tuple[Any, ...], str] = {}
_said: set[str] = set()


# ---- What is refused -----------------------------------------------------------------------------------------------


def _constant_in_graphs(function: Any) -> Any:
    """torch.compiler.assume_constant_result: a traced graph has no part in it. That imports the whole compiler, for
    seconds, to set this mark."""
    function._dynamo_marked_constant = True
    return function


@_constant_in_graphs
def say_once(where: str, reason: str) -> None:
    """Logs that PyTorch's kernel is used; each reason once in a process."""
    if reason not in _said:
        _said.add(reason)
        _logger.warning("%s: PyTorch's own kernel is used: %s", where, reason)


@_constant_in_graphs
def refusal(where: str, dtype: torch.dtype, head_dim: int, head_dim_v: int, mask: str, device: str,
            features: tuple[str, ...], differentiated: bool) -> str:
    """Why the library cannot do it, in one line, and that in the log; empty when it can."""
    key = (dtype, head_dim, head_dim_v, mask, device, features, differentiated)
    reason = _answers.get(key)
    if reason is None:
        if len(_answers) >= _MAX_ANSWERS:
            _answers.clear()
        reason = _answers[key] = _ask(*key)
    if reason:
        say_once(where, reason)
    return reason


def _ask(dtype: torch.dtype, head_dim: int, head_dim_v: int, mask: str, device: str,
         features: tuple[str, ...], differentiated: bool) -> str:
    if device not in ("cpu", "cuda"):
        return f"tensors on {device}; expected cpu or cuda"
    if dtype not in _TYPES:
        return f"element type {dtype}; expected torch.float16, torch.bfloat16 or torch.float32"
    config: dict[str, Any] = {"dtype": _TYPES[dtype], "head_dim": head_dim, "head_dim_v": head_dim_v, "mask": mask,
                              "target": device, **{feature: 0.5 for feature in features}}
    reasons: list[str] = []
    for direction in ("forward", "backward") if differentiated else ("forward",):
        reasons += [reason for reason in supports({**config, "direction": direction}) if reason not in reasons]
    return "; ".join(reasons)


def _shape_refusal(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], enable_gqa: bool) -> str:
    """What depends on more than a Config; the rest is what `supports` says."""
    if query.is_nested or key.is_nested or value.is_nested:
        return "nested tensors"
    of_query, of_key, of_value = query.shape, key.shape, value.shape
    if len(of_query) != 4 or len(of_key) != 4 or len(of_value) != 4:
        return "query, key or value not of rank 4: (batch, heads, seq, dim)"
    if not query.dtype == key.dtype == value.dtype:
        return "query, key and value of different types"
    if of_query[0] != of_key[0] or of_key[:3] != of_value[:3] or of_query[3] != of_key[3]:
        return "sizes that are broadcast"
    # One head of keys that is broadcast is a group of all heads.
    if of_key[1] not in (1, of_query[1]) and not (enable_gqa and of_query[1] % of_key[1] == 0):
        return "fewer heads of keys than of queries, without enable_gqa"
    if query.stride(3) != 1 or key.stride(3) != 1 or value.stride(3) != 1:
        return "a last dimension that is not contiguous"
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool:
            return f"an attn_mask of {attn_mask.dtype}; expected torch.bool"
        wanted = (*of_query[:3], of_key[2])[-attn_mask.dim():]
        if not 2 <= attn_mask.dim() <= 4 or any(mine not in (1, size) for mine, size in zip(attn_mask.shape, wanted)):
            return f"an attn_mask of shape {tuple(attn_mask.shape)}"
    return ""


def constant(size: int) -> int:
    """A size as a number, also while it is traced as a symbol: the graph then holds for this value alone."""
    return int(index(size))


def features(dropout: float, softcap: Optional[float] = None) -> tuple[str, ...]:
    """Fields of a Config that are set. That there is dropout or a cap decides; how much does not."""
    return (("dropout",) if dropout > 0 else ()) + (("softcap",) if softcap is not None else ())


# ---- The function --------------------------------------------------------------------------------------------------


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, *,
                                 scale: Optional[float] = None, enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by flashwright; the same arguments, the same meaning.

    query, key, value: (batch, heads, seq, dim). is_causal is top-left. attn_mask: bools; with an additive mask, and
    with whatever else `flashwright.supports` refuses, PyTorch's own kernel is used, and the reason logged once. A query
    that sees no key gets 0.
    """
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if torch.overrides.has_torch_function(tensors) or (attn_mask is not None and is_causal):
        return _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    mask = "blocks" if attn_mask is not None else "causal" if is_causal else "none"
    query, key, value = autocast(query, key, value)
    reason = _shape_refusal(query, key, value, attn_mask, enable_gqa)
    if reason:
        say_once("scaled_dot_product_attention", reason)
    else:
        differentiated = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        reason = refusal("scaled_dot_product_attention", query.dtype, constant(query.size(3)), constant(value.size(3)),
                         mask, "cuda" if query.is_cuda else query.device.type, features(dropout_p), differentiated)
    if reason:
        return _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    given: Any = mask
    if attn_mask is not None:
        each = attn_mask[(None,) * (4 - attn_mask.dim())]
        given = block_lists(each.expand(each.size(0), each.size(1), query.size(2), key.size(2)))
    return attend(query, key, value, given, softmax_scale=scale, dropout=dropout_p, q_position=0, heads_first=True)


@contextlib.contextmanager
def sdpa() -> Iterator[None]:
    """While it lasts, torch.nn.functional.scaled_dot_product_attention is flashwright's, for all threads.

    Code that holds the function under another name, from an import before, keeps PyTorch's.
    """
    functional = torch.nn.functional
    before = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = before
