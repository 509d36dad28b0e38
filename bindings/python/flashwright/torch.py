"""flashwright for PyTorch: attention that is differentiated, compiled, captured and cast as PyTorch's own is.

    import flashwright.torch
    o = flashwright.torch.attention(q, k, v, mask="causal")  # (batch, seq, heads, dim), CPU or CUDA

`sdpa` puts it in the place of torch.nn.functional.scaled_dot_product_attention. docs/python-torch.md tells more.
"""

from ._torch_attention import attention, rng_state
from ._torch_blocks import BlockLists, block_lists
from ._torch_flash import register_flash_attention
from ._torch_sdpa import scaled_dot_product_attention, sdpa

__all__ = ["BlockLists", "attention", "block_lists", "register_flash_attention", "rng_state",
           "scaled_dot_product_attention", "sdpa"]

register_flash_attention()
