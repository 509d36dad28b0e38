"""attention and attention_backward, on the arrays that the caller has."""

from __future__ import annotations

from operator import index
from typing import Any, Sequence

from . import _native
from ._arrays import Adapter, adapter_of, output, view
from ._blocks import Blocks
from ._config import effort_number, json_text
from ._errors import bad_type, bad_value

_MAX_REQUESTS = 1024  # for callers whose scale or dropout is another one in each call
_requests: dict[tuple[Any, ...], _native.Request] = {}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise bad_type(name, repr(value), "a number") from None


def _integer(name: str, value: Any, low: int, high: int) -> int:
    try:
        number = index(value)
    except TypeError:
        raise bad_type(name, repr(value), "an integer") from None
    if not low <= number < high:
        raise bad_value(name, number, f"{low} to {high - 1}")
    return number


def _mask_text(mask: Any) -> str:
    if isinstance(mask, str):
        return mask
    if isinstance(mask, tuple) and len(mask) == 2:
        return "window:{},{}".format(*(_integer("mask", side, -1, 1 << 30) for side in mask))
    raise bad_type("mask", repr(mask), "'none', 'causal', 'window:LEFT,RIGHT', (LEFT, RIGHT) or flashwright.Blocks")


def request_fields(direction: str, mask: Any, dropout: float = 0.0, softmax_scale: float | None = None,
                   softcap: float | None = None, alibi: bool = False, deterministic: bool = False) -> dict[str, Any]:
    """The fields of a Config that the tensors do not say; see `request`."""
    fields: dict[str, Any] = {"direction": direction, "mask": _mask_text(mask)}
    for name, value in (("dropout", dropout), ("softmax_scale", softmax_scale), ("softcap", softcap)):
        if value is not None and (name != "dropout" or value != 0):
            fields[name] = _number(name, value)
            if fields[name] - fields[name] != 0:
                raise bad_value(name, value, "a finite number")
    for name, flag in (("alibi", alibi), ("deterministic", deterministic)):
        if flag:
            fields[name] = True
    return fields


def request(direction: str, mask: Any, dropout: float = 0.0, softmax_scale: float | None = None,
            softcap: float | None = None, alibi: bool = False, deterministic: bool = False) -> _native.Request:
    """The part of a Config that the tensors do not say, kept for the next call with the same values.

    mask: as in `attention`; "blocks" for any block lists.
    """
    key = (direction, mask, dropout, softmax_scale, softcap, alibi, deterministic)
    try:
        found = _requests.get(key)
    except TypeError:
        _mask_text(mask)  # its message, if the mask is what cannot be hashed
        raise bad_type("softmax_scale, softcap, dropout", f"{(softmax_scale, softcap, dropout)}", "numbers") from None
    if found is not None:
        return found
    fields = request_fields(direction, mask, dropout, softmax_scale, softcap, alibi, deterministic)
    if len(_requests) >= _MAX_REQUESTS:
        _requests.clear()
    made = _requests[key] = _native.Request(json_text("request", fields)[1:-1])
    return made


def _shape(name: str, tensor: Any) -> tuple[int, ...]:
    shape = tensor.shape
    if len(shape) != 4:
        raise bad_value(name, f"rank {len(shape)}", "rank 4: (batch, seq, heads, dim)")
    return tuple(shape)


def _lists(mask: Any, adapter: Adapter, q: Any) -> _native.BlockLists | None:
    if not isinstance(mask, Blocks):
        return None
    if mask.on_cuda != adapter.on_cuda(q):
        places = ("host memory", "GPU memory")
        raise bad_value("mask", f"block lists in {places[mask.on_cuda]}",
                        f"lists in {places[not mask.on_cuda]}, where q lies: mask.to(q)")
    return mask.lists


def _launch(wanted: _native.Request, arguments: _native.Arguments, adapter: Adapter, q: Any, stream: int | None,
            effort: str) -> None:
    on = adapter.stream(q) if stream is None else _integer("stream", stream, 0, 1 << 64)
    wanted.kernel(arguments, effort_number(effort)).launch(arguments, on, adapter.workspace(q, on))


def attention(q: Any, k: Any, v: Any, mask: str | tuple[int, int] | Blocks = "none", *,
              softmax_scale: float | None = None, softcap: float | None = None, alibi_slopes: Any = None,
              dropout: float = 0.0, seed: int = 0, offset: int = 0, q_position: int | None = None,
              deterministic: bool = False, return_lse: bool = False, o: Any = None, lse: Any = None,
              stream: int | None = None, effort: str = "compile") -> Any:
    """Exact attention: softmax(softmax_scale * q k^T, masked) v. Returns o, or (o, lse) with return_lse.

    Tensors are those of NumPy, PyTorch, CuPy, JAX (on the CPU), or have DLPack; all in the memory of one device, with
    any strides but a contiguous last dimension; nothing is copied. float16, bfloat16 or float32, the same for all.

    q: (batch, seq_q, heads_q, head_dim). k: (batch, seq_kv, heads_kv, head_dim). v: (batch, seq_kv, heads_kv,
    head_dim_v). heads_q is a multiple of heads_kv: query head h uses key head h // (heads_q // heads_kv).

    mask: "none", "causal", "window:LEFT,RIGHT" or (LEFT, RIGHT) with -1 for an open side, or `Blocks`.
    q_position: position of query 0 among the keys; seq_kv - seq_q by default, 0 for top-left.
    softmax_scale: 1 / sqrt(head_dim) by default. softcap: a score s becomes softcap * tanh(s / softcap).
    alibi_slopes: float32 (heads_q) or (batch, heads_q); key j adds slope * (j - i - q_position) for query i.
    dropout: probability to drop a weight, a multiple of 1/256 in effect; seed and offset, 64 bits each, say which.

    o: (batch, seq_q, heads_q, head_dim_v), of q's type; lse: float32 (batch, heads_q, seq_q), the natural logarithm of
    the sum of exponentials. They are made by q's framework, or written where they are given. A query that sees no key
    has o = 0 and lse = -inf.
    stream: address of the CUDA stream; the caller's current one by default. effort: see `get_kernel`.

    Raises FlashwrightTypeError, FlashwrightValueError, UnsupportedError, UnavailableError, CompileError,
    NotCachedError, each with the argument, its value and what is allowed.
    """
    adapter = adapter_of("q", q)
    wanted = request("forward", "blocks" if isinstance(mask, Blocks) else mask, dropout, softmax_scale, softcap,
                     alibi_slopes is not None, deterministic)
    q_shape, v_shape = _shape("q", q), _shape("v", v) if hasattr(v, "shape") else (0, 0, 0, 0)
    to_o = adapter.empty(q, (*q_shape[:3], v_shape[3])) if o is None else o
    to_lse = lse
    if return_lse and lse is None:
        to_lse = adapter.empty(q, (q_shape[0], q_shape[2], q_shape[1]), float32=True)
    arguments = _native.Arguments(
        adapter.view("q", q), view("k", k), view("v", v), output("o", to_o), output("lse", to_lse),
        view("alibi_slopes", alibi_slopes), _lists(mask, adapter, q), _integer("seed", seed, 0, 1 << 64),
        _integer("offset", offset, 0, 1 << 64), 0, position_of(q_position))
    _launch(wanted, arguments, adapter, q, stream, effort)
    to_o = adapter.finish(to_o) if o is None else o
    if not return_lse:
        return to_o
    return to_o, adapter.finish(to_lse) if lse is None else lse


def position_of(q_position: int | None) -> int | None:
    """The argument q_position, checked."""
    return None if q_position is None else _integer("q_position", q_position, -(1 << 30) + 1, 1 << 30)


_GRADIENTS = ("dq", "dk", "dv")


def _destinations(adapter: Adapter, q: Any, sources: tuple[Any, ...], given: tuple[Any, ...],
                  gradients: Sequence[str]) -> list[Any]:
    """Where each gradient goes: what was given, a new tensor, or None where it is not wanted."""
    unknown = [name for name in gradients if name not in _GRADIENTS]
    if unknown or isinstance(gradients, str):
        raise bad_value("gradients", repr(gradients), "some of 'dq', 'dk', 'dv', as a tuple")
    out = []
    for name, source, tensor in zip(_GRADIENTS, sources, given):
        if name not in gradients:
            if tensor is not None:
                raise bad_value(name, "a tensor", f"None, as gradients is {tuple(gradients)}")
            out.append(None)
        else:
            out.append(adapter.empty(q, _shape(name[1], source)) if tensor is None else tensor)
    return out


def attention_backward(d_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any,
                       mask: str | tuple[int, int] | Blocks = "none", *, d_lse: Any = None,
                       gradients: Sequence[str] = _GRADIENTS, softmax_scale: float | None = None,
                       softcap: float | None = None, alibi_slopes: Any = None, dropout: float = 0.0, seed: int = 0,
                       offset: int = 0, q_position: int | None = None, deterministic: bool = False, dq: Any = None,
                       dk: Any = None, dv: Any = None, stream: int | None = None,
                       effort: str = "compile") -> tuple[Any, Any, Any]:
    """The gradients (dq, dk, dv) of `attention`, from that of o: (batch, seq_q, heads_q, head_dim_v).

    q, k, v, mask and all options are those of the forward call, o and lse what it returned (return_lse=True); d_lse is
    the gradient of lse, None for 0. The gradients have the shapes and the type of q, k and v; dk and dv are sums over
    the query heads that share a key head. gradients: those that are wanted; the others are None and not computed. They
    are made by q's framework, or written where dq, dk, dv are given.

    deterministic: the same bits on every run. Otherwise as `attention`; the same errors.
    """
    adapter = adapter_of("q", q)
    wanted = request("backward", "blocks" if isinstance(mask, Blocks) else mask, dropout, softmax_scale, softcap,
                     alibi_slopes is not None, deterministic)
    given = (dq, dk, dv)
    to = _destinations(adapter, q, (q, k, v), given, gradients)
    arguments = _native.Arguments(
        adapter.view("q", q), view("k", k), view("v", v), view("o", o), view("lse", lse),
        view("alibi_slopes", alibi_slopes), _lists(mask, adapter, q), _integer("seed", seed, 0, 1 << 64),
        _integer("offset", offset, 0, 1 << 64), 0, position_of(q_position), view("d_o", d_o), view("d_lse", d_lse),
        *(output(name, tensor) for name, tensor in zip(_GRADIENTS, to)))
    _launch(wanted, arguments, adapter, q, stream, effort)
    made = [tensor if tensor is None or was is not None else adapter.finish(tensor) for tensor, was in zip(to, given)]
    return made[0], made[1], made[2]
