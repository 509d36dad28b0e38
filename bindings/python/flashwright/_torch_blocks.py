"""Block lists from a mask of PyTorch, made where the mask lies and without waiting for the device.

The arrays of a launch (docs/semantics.md) have lengths that depend on what the mask holds. Here all lie in one tensor,
each with the room for every block of the mask, so that shapes are known beforehand: this can be traced and captured.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import torch
from torch import Tensor

from . import _native
from ._errors import bad_type, bad_value


class BlockLists(NamedTuple):
    """A mask as lists of full and partial blocks, for `flashwright.torch.attention`; from `block_lists`.

    lists: int32, all arrays in one. sizes: seq_q, seq_kv, block_q, block_kv, batch, heads.
    """

    lists: Tensor
    sizes: tuple[int, int, int, int, int, int]


def _ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


def block_lists(mask: Tensor, block_q: int = 128, block_kv: int = 128) -> BlockLists:
    """Lists of the visible blocks of a mask, for use in many calls.

    mask: bools, true where a key is visible: (seq_q, seq_kv), or (batch, heads, seq_q, seq_kv) with batch and heads 1
    or those of q. block_kv is a multiple of 32. The lists take an eighth of the bytes of the mask and some.
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise bad_type("mask", f"{mask.dtype}" if isinstance(mask, Tensor) else f"a {type(mask).__name__}",
                       "a tensor of bools")
    if mask.dim() not in (2, 4):
        raise bad_value("mask", f"rank {mask.dim()}", "rank 2: (seq_q, seq_kv), or 4: (batch, heads, seq_q, seq_kv)")
    if block_q < 1 or block_kv < 32 or block_kv % 32:
        raise bad_value("block_q, block_kv", (block_q, block_kv), "positive numbers, block_kv a multiple of 32")
    mask = mask if mask.dim() == 4 else mask[None, None]
    batch, heads, seq_q, seq_kv = mask.shape
    tiles = _tiles(mask, block_q, block_kv)
    visible = tiles.sum((-2, -1), dtype=torch.int32)
    full = visible == _areas(seq_q, seq_kv, block_q, block_kv, mask.device)
    partial = (visible > 0) & ~full
    rows = torch.arange(tiles.size(2), device=mask.device, dtype=torch.int32)[:, None].expand(full.shape)
    columns = torch.arange(tiles.size(3), device=mask.device, dtype=torch.int32).expand(full.shape)
    places = partial.flatten().cumsum(0, dtype=torch.int32).view(full.shape) - 1
    parts = [_bits(tiles, partial), *_compress(full, columns), *_compress(partial, columns)]
    for flags, values in ((full, (rows,)), (partial, (rows, places))):
        parts += _compress(flags.mT, *(x.mT for x in values))
    return BlockLists(torch.cat(parts), (seq_q, seq_kv, block_q, block_kv, batch, heads))


def _tiles(mask: Tensor, block_q: int, block_kv: int) -> Tensor:
    """(batch, heads, query blocks, key blocks, block_q, block_kv), false beyond the lengths."""
    batch, heads, seq_q, seq_kv = mask.shape
    blocks_q, blocks_kv = _ceil_div(seq_q, block_q), _ceil_div(seq_kv, block_kv)
    padded = torch.nn.functional.pad(mask, (0, blocks_kv * block_kv - seq_kv, 0, blocks_q * block_q - seq_q))
    return padded.view(batch, heads, blocks_q, block_q, blocks_kv, block_kv).transpose(3, 4)


def _areas(seq_q: int, seq_kv: int, block_q: int, block_kv: int, device: torch.device) -> Tensor:
    """Elements in each block, which are cut at the lengths."""
    def extents(length: int, block: int) -> Tensor:
        starts = torch.arange(_ceil_div(length, block), device=device, dtype=torch.int32) * block
        return (length - starts).clamp(max=block)
    return extents(seq_q, block_q)[:, None] * extents(seq_kv, block_kv)


def _compress(flags: Tensor, *values: Tensor) -> list[Tensor]:
    """Offsets of the rows, and for each of values its elements where a flag is set, row by row; then what is left."""
    ends = flags.sum(-1, dtype=torch.int32).flatten().cumsum(0, dtype=torch.int32)
    order = _first(flags)
    return [torch.nn.functional.pad(ends, (1, 0)), *(value.flatten()[order] for value in values)]


def _bits(tiles: Tensor, partial: Tensor) -> Tensor:
    """The bits of the partial blocks, one after the other, each row of keys as 32-bit words; then those of the rest."""
    powers = (1 << torch.arange(8, device=tiles.device)).to(torch.uint8)
    packed = (tiles.unflatten(-1, (-1, 8)) * powers).sum(-1, dtype=torch.uint8)  # little-endian, as words are read
    words = packed.contiguous().flatten(0, 3).view(torch.int32)
    return words[_first(partial)].flatten()


def _first(flags: Tensor) -> Tensor:
    """The order of elements that takes those with a flag first, and keeps it else."""
    return flags.flatten().logical_not().to(torch.uint8).argsort(stable=True)


# Of the arrays of _native.BlockLists.array_names(): whether one has an element for each block, or offsets of rows, or
# of columns of blocks. The bits, last there, lie first here.
_EXTENTS = ("rows", "blocks", "rows", "blocks", "columns", "blocks", "columns", "blocks", "blocks")


def native_lists(lists: Tensor, sizes: Sequence[int]) -> _native.BlockLists:
    """The view that a launch takes. lists has to outlive it."""
    seq_q, seq_kv, block_q, block_kv, batch, heads = sizes
    blocks_q, blocks_kv = _ceil_div(seq_q, block_q), _ceil_div(seq_kv, block_kv)
    blocks = batch * heads * blocks_q * blocks_kv
    counts = {"rows": batch * heads * blocks_q + 1, "columns": batch * heads * blocks_kv + 1, "blocks": blocks}
    at = blocks * block_q * (block_kv // 32)
    addresses = []
    for extent in _EXTENTS:
        addresses.append(lists.data_ptr() + 4 * at)
        at += counts[extent]
    if at != lists.numel() or lists.dtype != torch.int32 or not lists.is_contiguous():
        raise bad_value("mask", f"block lists of {lists.numel()} {lists.dtype}",
                        f"{at} int32, as block_lists makes them")
    return _native.BlockLists(list(sizes), [*addresses, lists.data_ptr()])
