"""Block lists: a mask of one's own, as lists of full and partial blocks."""

from __future__ import annotations

from typing import Any

from . import _native
from ._arrays import adapter_of
from ._errors import bad_type, bad_value


class Blocks:
    """The visible keys as lists of blocks of block_q queries by block_kv keys; docs/semantics.md has the form.

    Pass it as the mask of `attention` and `attention_backward`. Lists are made in host memory and serve tensors there;
    for tensors on a GPU, `to` copies them. They are bound to the lengths that they were made for.
    """

    __slots__ = ("lists", "on_cuda", "_arrays")

    def __init__(self, lists: _native.BlockLists, on_cuda: bool = False, arrays: tuple[Any, ...] = ()) -> None:
        self.lists = lists
        self.on_cuda = on_cuda
        self._arrays = arrays  # keeps the memory of a view alive

    @classmethod
    def from_mask(cls, mask: Any, block_q: int = 64, block_kv: int = 64) -> Blocks:
        """From an array of bools in host memory, true where a key is visible.

        mask: (seq_q, seq_kv), shared by all, or (batch, heads, seq_q, seq_kv) with batch and heads 1 or those of q;
        dense.
        """
        rank = len(getattr(mask, "shape", ()))
        if rank == 2:
            mask = mask[None, None]
        elif rank != 4:
            raise bad_value("mask", f"rank {rank}", "rank 2: (seq_q, seq_kv), or 4: (batch, heads, seq_q, seq_kv)")
        for name, extent in (("block_q", block_q), ("block_kv", block_kv)):
            if not isinstance(extent, int):
                raise bad_type(name, repr(extent), "a number of rows or columns")
        return cls(_native.BlockLists.from_mask(mask, block_q, block_kv))

    def to(self, like: Any) -> Blocks:
        """A copy where the array `like` lies; itself when that is host memory. Needs NumPy."""
        adapter = adapter_of("like", like)
        if adapter.on_cuda(like) == self.on_cuda:
            return self
        if self.on_cuda:
            raise bad_value("like", "an array in host memory", "one on a GPU, as these lists are there")
        import ctypes

        import numpy
        arrays, addresses = [], []
        for address, count in self.lists.host_arrays():
            host = numpy.frombuffer((ctypes.c_int32 * count).from_address(address), numpy.int32) if count else \
                numpy.zeros(1, numpy.int32)
            arrays.append(adapter.from_host(like, host))
            addresses.append(adapter.address(arrays[-1]))
        return Blocks(_native.BlockLists(self.lists.sizes, addresses), True, tuple(arrays))

    def __repr__(self) -> str:
        seq_q, seq_kv, block_q, block_kv, batch, heads = self.lists.sizes
        where = "cuda" if self.on_cuda else "cpu"
        return (f"<flashwright.Blocks of {seq_q} x {seq_kv} in blocks of {block_q} x {block_kv}, batch {batch}, "
                f"heads {heads}, {where}>")
