"""The operators of PyTorch: flashwright::forward and flashwright::backward.

Both are functions without side effects, written in Python alone, so that one package serves every version of PyTorch.
What has to be constant in a traced graph (mask, scale, dropout) is not a tensor among their arguments; lengths, batch
and heads come from the tensors, and no kernel depends on them.
"""

from __future__ import annotations

import functools
from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from . import _native
from ._arrays import Torch, aligned
from ._attention import request
from ._errors import CapturingError, NotCachedError, bad_value
from ._torch_blocks import native_lists

# q, k, v, out: (batch, seq, heads, dim). lse: (batch, heads_q, seq_q). rng: {seed, offset} as two int64, read when the
# kernel runs. lists and list_sizes: the fields of BlockLists, with the mask "blocks" alone. Of a gradient that is not
# wanted comes a tensor without elements.
_OPTIONS = ("Tensor? alibi_slopes, Tensor? rng, Tensor? lists, SymInt[] list_sizes, SymInt? q_position, str mask, "
            "float? softmax_scale, float? softcap, float dropout, bool deterministic")
_SCHEMAS = {
    "forward": f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
    "backward": f"(Tensor d_out, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}, "
                "bool[3] wanted) -> (Tensor, Tensor, Tensor)",
}

_library = torch.library.Library("flashwright", "DEF")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))

_COMPILE, _LOADED = 2, 0  # efforts; while a CUDA graph is captured nothing is loaded


# ---- Kernels -------------------------------------------------------------------------------------------------------


# Of the tensors among the arguments of _native.Arguments.
_NAMES = ("q", "k", "v", "out", "lse", "alibi_slopes", "", "", "", "", "", "d_out", "d_lse", "dq", "dk", "dv")


def _from_views(*arguments: Any) -> _native.Arguments:
    described = (x if x is None or not name else _describe(name, x) for name, x in zip(_NAMES, arguments))
    return _native.Arguments(*described, *arguments[len(_NAMES):])


_describe = Torch().describe


# The extension module reads tensors itself, without Python, where this version of PyTorch lets it.
_HAS_EXCHANGE = _native.use_exchange(Tensor)
_arguments = _native.Arguments if _HAS_EXCHANGE else _from_views


def _rng_address(rng: Tensor, q: Tensor) -> int:
    if rng.dtype not in (torch.int64, torch.uint64) or rng.shape != (2,) or not rng.is_contiguous():
        raise bad_value("rng", f"{rng.dtype} of shape {tuple(rng.shape)}", "two int64: seed and offset")
    if rng.device != q.device:
        raise bad_value("rng", f"memory of {rng.device}", f"memory of {q.device}, where q lies")
    return rng.data_ptr()


def _blocks(lists: Tensor, sizes: Sequence[int], q: Tensor) -> _native.BlockLists:
    if lists.device != q.device:
        raise bad_value("mask", f"block lists in memory of {lists.device}", f"memory of {q.device}, where q lies")
    return native_lists(lists, sizes)


@functools.cache
def _share_threads() -> None:
    """CPU kernels run on PyTorch's own threads: these spin after each operator, and leave no core to others."""
    _native.use_openmp()


def _launch(wanted: _native.Request, arguments: _native.Arguments, q: Tensor) -> None:
    if not q.is_cuda:
        _share_threads()
        wanted.launch(arguments)
        return

    def workspace(size: int) -> tuple[int, Tensor]:
        # From the caching allocator on the launch's own stream: nobody gets the memory before the kernel is done, and
        # a captured graph keeps it.
        memory = torch.empty(size + 255, dtype=torch.uint8, device=q.device)
        return aligned(memory.data_ptr(), memory)
    stream = None if _HAS_EXCHANGE else torch.cuda.current_stream(q.device).cuda_stream
    try:
        wanted.launch(arguments, _LOADED, stream, workspace)
        return
    except NotCachedError as error:
        if torch.cuda.is_current_stream_capturing():
            raise CapturingError("a CUDA graph is being captured, and the kernel of this call is not loaded yet: make "
                                 "the same call once before the capture, as a warm-up", error.message) from None
    wanted.launch(arguments, _COMPILE, stream, workspace)


def _forward(q: Tensor, k: Tensor, v: Tensor, alibi_slopes: Optional[Tensor], rng: Optional[Tensor],
             lists: Optional[Tensor], list_sizes: Sequence[int], q_position: Optional[int], mask: str,
             softmax_scale: Optional[float], softcap: Optional[float], dropout: float, deterministic: bool,
             with_lse: bool = True, heads_first: bool = False) -> tuple[Tensor, Optional[Tensor]]:
    wanted = request("forward", mask, dropout, softmax_scale, softcap, alibi_slopes is not None)
    out, lse = _forward_shapes(q, v, with_lse, heads_first)
    arguments = _arguments(q, k, v, out, lse, alibi_slopes, None if lists is None else _blocks(lists, list_sizes, q),
                           0, 0, 0 if rng is None else _rng_address(rng, q), q_position, None, None, None, None, None,
                           heads_first)
    _launch(wanted, arguments, q)
    return out, lse


def _backward(d_out: Tensor, d_lse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
              alibi_slopes: Optional[Tensor], rng: Optional[Tensor], lists: Optional[Tensor],
              list_sizes: Sequence[int], q_position: Optional[int], mask: str, softmax_scale: Optional[float],
              softcap: Optional[float], dropout: float, deterministic: bool,
              wanted: Sequence[bool], heads_first: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    # The flag of PyTorch is read here, when gradients are computed, as its own kernels do.
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    form = request("backward", mask, dropout, softmax_scale, softcap, alibi_slopes is not None, deterministic)
    # Gradients come as autograd has them: expanded from a sum, for instance.
    d_out = d_out if d_out.stride(3) == 1 else d_out.contiguous()
    if d_lse is not None and d_lse.stride(2) != 1:
        d_lse = d_lse.contiguous()
    dq, dk, dv = _backward_shapes(q, k, v, wanted)
    arguments = _arguments(q, k, v, out, lse, alibi_slopes, None if lists is None else _blocks(lists, list_sizes, q),
                           0, 0, 0 if rng is None else _rng_address(rng, q), q_position, d_out, d_lse,
                           dq if wanted[0] else None, dk if wanted[1] else None, dv if wanted[2] else None,
                           heads_first)
    _launch(form, arguments, q)
    return dq, dk, dv


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)


# ---- Shapes --------------------------------------------------------------------------------------------------------


def _forward_shapes(q: Tensor, v: Tensor, with_lse: bool = True,
                    heads_first: bool = False) -> tuple[Tensor, Optional[Tensor]]:
    if q.dim() != 4 or v.dim() != 4:
        name, tensor = ("v", v) if q.dim() == 4 else ("q", q)
        raise bad_value(name, f"rank {tensor.dim()}", "rank 4: (batch, seq, heads, dim)")
    batch, seq_q, heads, dim = q.shape
    # In memory it is always (batch, seq, heads, dim).
    if heads_first:
        seq_q, heads = heads, seq_q
        out = torch.empty_permuted((batch, heads, seq_q, v.size(3)), (0, 2, 1, 3), dtype=q.dtype, device=q.device)
    elif v.size(3) == dim and q.is_contiguous():
        out = torch.empty_like(q)  # the faster of two ways to the same strides
    else:
        out = q.new_empty((batch, seq_q, heads, v.size(3)))
    return out, q.new_empty((batch, heads, seq_q), dtype=torch.float32) if with_lse else None


def _backward_shapes(q: Tensor, k: Tensor, v: Tensor, wanted: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x) if want else x.new_empty((0,)) for x, want in zip((q, k, v), wanted))
    return dq, dk, dv


@torch.library.register_fake("flashwright::forward", lib=_library)
def _(q, k, v, *options):
    return _forward_shapes(q, v)


@torch.library.register_fake("flashwright::backward", lib=_library)
def _(d_out, d_lse, q, k, v, out, lse, *options):
    return _backward_shapes(q, k, v, options[-1])


# ---- Derivatives ---------------------------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, alibi_slopes, rng, lists, *ctx.rest = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, alibi_slopes, rng, lists)


def _differentiate(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor]) -> tuple[Any, ...]:
    return (*_gradients(ctx, d_out, d_lse), None, None, None, *[None] * len(ctx.rest))


def _gradients(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor],
               heads_first: bool = False) -> list[Optional[Tensor]]:
    q, k, v, out, lse, alibi_slopes, rng, lists = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:3])
    if not any(wanted) or (d_out is None and d_lse is None):
        return [None] * 3
    d_out = torch.zeros_like(out) if d_out is None else d_out
    rest = (alibi_slopes, rng, lists, *ctx.rest, wanted)
    # With create_graph the operator has to be in the graph, for its word on second derivatives.
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling() and _is_plain(d_out, q, k, v):
        found = _backward(d_out, d_lse, q, k, v, out, lse, *rest, heads_first)
    else:
        operator = getattr(ctx, "operator", torch.ops.flashwright.backward)
        if heads_first:
            d_out, q, k, v, out = (x.transpose(1, 2) for x in (d_out, q, k, v, out))
        found = operator(d_out, d_lse, q, k, v, out, lse, *rest)
        if heads_first:
            found = [x.transpose(1, 2) if want else x for x, want in zip(found, wanted)]
    return [x if want else None for x, want in zip(found, wanted)]


def _differentiate_twice(ctx: Any, *gradients: Tensor) -> Any:
    raise RuntimeError("flashwright: attention has no second derivative (create_graph=True, or a gradient of a "
                       "gradient); use torch.nn.functional.scaled_dot_product_attention with its math backend there")


torch.library.register_autograd("flashwright::forward", _differentiate, setup_context=_keep, lib=_library)
torch.library.register_autograd("flashwright::backward", _differentiate_twice, lib=_library)


# ---- The short way -------------------------------------------------------------------------------------------------


class _Forward(torch.autograd.Function):
    """The operator's kernel and derivative without PyTorch's dispatcher in between, which counts arguments too."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...],
                heads_first: bool) -> tuple[Tensor, Tensor]:
        out, lse = _forward(q, k, v, *options, True, heads_first)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *options[:3])
        ctx.rest, ctx.heads_first = options[3:], heads_first
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor]) -> tuple[Any, ...]:
        return (*_gradients(ctx, d_out, d_lse, ctx.heads_first), None, None)


_PLAIN = (Tensor, torch.nn.Parameter)
_C = torch._C


def _is_plain(*tensors: Tensor) -> bool:
    """Whether nothing but autograd would be told of a call: no transform, mode, profiler, subclass."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN or tensor.is_neg() or not (tensor.is_cuda or tensor.is_cpu):
            return False
    return (_C._len_torch_dispatch_stack() == 0 and _C._len_torch_function_stack() == 0
            and _C._functorch.peek_interpreter_stack() is None and not _C._autograd._profiler_enabled()
            and torch.autograd.forward_ad._current_level < 0 and not _C._is_tracing())


def _is_transformed() -> bool:
    """Whether torch.vmap or a transform of torch.func is at work."""
    return _C._functorch.peek_interpreter_stack() is not None


try:
    _is_plain(), _is_transformed()
except AttributeError:  # these names are PyTorch's own business; without them all calls go through the operator
    def _is_plain(*tensors: Tensor) -> bool:  # noqa: F811
        return False

    _is_transformed = _is_plain


def forward(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], with_lse: bool = True,
            heads_first: bool = False) -> tuple[Tensor, Optional[Tensor]]:
    """torch.ops.flashwright.forward, in a fraction of the time where a program runs eagerly.

    An operator that is written in Python costs more in the dispatcher, above all with gradients, than a short kernel.
    with_lse: whether the caller wants the second result. heads_first: q, k, v and the first result are (batch, heads,
    seq, dim).
    """
    if not torch.compiler.is_compiling() and _is_plain(q, k, v):
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            return _Forward.apply(q, k, v, options, heads_first)
        return _forward(q, k, v, *options, with_lse, heads_first)
    transformed = not torch.compiler.is_compiling() and _is_transformed()
    operator = _TransformedForward.apply if transformed else torch.ops.flashwright.forward
    if not heads_first:
        return operator(q, k, v, *options)
    out, lse = operator(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), *options)
    return out.transpose(1, 2), lse


# ---- Batching ------------------------------------------------------------------------------------------------------


def _fold(name: str, tensor: Optional[Tensor], dim: Optional[int], size: int, batch: int) -> Optional[Tensor]:
    """Mapped tensors with the mapped dimension in front of the batch, and both as one."""
    if tensor is None:
        return None
    if name == "alibi_slopes" and tensor.dim() == (1 if dim is None else 2):  # (heads): shared by the batch
        if dim is None:
            return tensor
        tensor = tensor.movedim(dim, 0).unsqueeze(1).expand(size, batch, -1)
    else:
        tensor = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.reshape(tensor.size(0) * tensor.size(1), *tensor.shape[2:])


def _map(op: Any, names: Sequence[str], info: Any, in_dims: Any, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """vmap: the mapped dimension joins the batch. The bits of dropout differ along it, as they do along the batch."""
    places = {name: at for at, name in enumerate(names)}
    lists, sizes = args[places["lists"]], args[places["list_sizes"]]
    if in_dims[places["rng"]] is not None:
        raise bad_value("rng", "a mapped tensor", "one for all of vmap")
    if lists is not None and (sizes[4] != 1 or in_dims[places["lists"]] is not None):
        raise bad_value("mask", "a mask for each batch entry under vmap", "one that is shared by the batch")
    at_q = places["q"]
    batch = args[at_q].size(0 if in_dims[at_q] != 0 else 1)
    folded = list(args)
    for name, at in places.items():
        if name in _MAPPED:
            folded[at] = _fold(name, args[at], in_dims[at], info.batch_size, batch)
    out = op(*folded)
    # A gradient that is not wanted has no elements, and no batch to take apart.
    outputs = tuple(x.reshape(info.batch_size, batch, *x.shape[1:]) if x.dim() > 1 else x for x in out)
    return outputs, tuple(0 if x.dim() > 1 else None for x in out)


_MAPPED = ("d_out", "d_lse", "q", "k", "v", "out", "lse", "alibi_slopes")


def _names(operator: str) -> list[str]:
    return [argument.name for argument in getattr(torch.ops.flashwright, operator).default._schema.arguments]


def _register_batching() -> None:
    for name in _SCHEMAS:
        def rule(info: Any, in_dims: Any, *args: Any, name: str = name) -> Any:
            return _map(getattr(torch.ops.flashwright, name), _names(name), info, in_dims, args)
        torch.library.register_vmap("flashwright::" + name, rule, lib=_library)


if hasattr(torch.library, "register_vmap"):
    _register_batching()


# ---- torch.func ----------------------------------------------------------------------------------------------------
#
# Its transforms of gradients know autograd functions with a rule for each of them, and no operators that are written
# in Python.


class _TransformedForward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        return torch.ops.flashwright.forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _keep(ctx, inputs, output)
        ctx.operator = _TransformedBackward.apply

    backward = staticmethod(_differentiate)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        return _map(_TransformedForward.apply, _names("forward"), info, in_dims, inputs)


class _TransformedBackward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.flashwright.backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    backward = staticmethod(_differentiate_twice)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        return _map(_TransformedBackward.apply, _names("backward"), info, in_dims, inputs)
