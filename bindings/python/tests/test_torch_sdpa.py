"""In the place of scaled_dot_product_attention: the same meaning as PyTorch's, and PyTorch's kernel where refused."""

import logging

import pytest

torch = pytest.importorskip("torch")
import flashwright.torch as ft  # noqa: E402
from flashwright import _torch_flash, _torch_ops, _torch_sdpa  # noqa: E402

pytestmark = pytest.mark.cpu
original = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture
def make(device):
    def make(heads_q=4, heads_kv=4, seq_q=29, seq_kv=29, dim=16, dtype=torch.float32):
        generator = torch.Generator().manual_seed(3)
        shapes = [(2, heads, seq, dim) for heads, seq in ((heads_q, seq_q), (heads_kv, seq_kv), (heads_kv, seq_kv))]
        return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]
    return make


@pytest.fixture
def launches(monkeypatch):
    """The Configs that are launched: empty when PyTorch's kernel has done the work."""
    asked = []
    monkeypatch.setattr(_torch_ops, "request", lambda *a: asked.append(a) or _real_request(*a))
    return asked


_real_request = _torch_ops.request


def compare(tensors, bound=2e-5, **options):
    got = torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
    mask = options.pop("attn_mask", None)
    if mask is not None:  # PyTorch's own kernels on a GPU do not all take one that is to be broadcast
        mask = mask.expand(*mask.shape[:-2], tensors[0].size(2), tensors[1].size(2)).contiguous()
    want = original(*tensors, attn_mask=mask, **options)
    assert got.shape == want.shape and got.dtype == want.dtype
    assert (got - want).abs().max() <= bound
    gradient = torch.randn_like(want)
    for mine, other in zip(torch.autograd.grad(got, tensors, gradient), torch.autograd.grad(want, tensors, gradient)):
        assert (mine - other).abs().max() <= bound * 4


@pytest.mark.parametrize("sizes, options", [
    ({}, {}),
    ({}, {"is_causal": True}),
    ({"seq_q": 17}, {"is_causal": True}),  # top-left, unlike flashwright's own default
    ({"seq_kv": 17}, {"is_causal": True}),
    ({"heads_kv": 2}, {"enable_gqa": True, "is_causal": True}),
    ({"heads_kv": 1}, {}),  # broadcast
    ({}, {"scale": 0.5}),
])
def test_means_the_same(make, launches, sizes, options):
    with ft.sdpa():
        compare(make(**sizes), **options)
    assert [a[0] for a in launches] == ["forward", "backward"]


@pytest.mark.parametrize("shape", [(29, 31), (4, 29, 31), (1, 1, 29, 31), (2, 1, 29, 31), (2, 4, 29, 31),
                                   (1, 4, 29, 31), (29, 1), (2, 1, 1, 31)])
def test_masks_of_bools(make, device, launches, shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(2)).to(device) < 0.5
    mask[..., 0] = True
    with ft.sdpa():
        compare(make(seq_kv=31), attn_mask=mask)
    assert [a[1] for a in launches] == ["blocks", "blocks"]


def test_a_query_that_sees_no_key(make, device, launches):
    mask = torch.ones(29, 29, dtype=torch.bool, device=device)
    mask[5] = False
    with ft.sdpa():
        o = torch.nn.functional.scaled_dot_product_attention(*make(), attn_mask=mask)
    assert (o[:, :, 5] == 0).all() and launches


def test_dropout_keeps_the_mean(make, launches):
    q, k, v = make(seq_q=128, seq_kv=128)
    with ft.sdpa():
        o = torch.nn.functional.scaled_dot_product_attention(q * 0, k, torch.ones_like(v), dropout_p=0.5)
    assert launches and 0.9 < o.mean() < 1.1 and o.std() > 0.02


@pytest.mark.parametrize("name, sizes, options", [
    ("head_dim", {"dim": 12}, {}),
    ("float64", {"dtype": torch.float64}, {}),
    ("attn_mask of torch.float32", {}, {"attn_mask": "additive"}),
])
def test_falls_back_and_says_why_once(make, device, launches, caplog, name, sizes, options):
    if options:
        options = {"attn_mask": torch.randn(29, 29, device=device)}
    _torch_sdpa._said.clear()
    with caplog.at_level(logging.WARNING, "flashwright"), ft.sdpa():
        compare(make(**sizes), **options)
        compare(make(**sizes), **options)
    assert not launches
    assert len(caplog.records) == 1 and name in caplog.text


def test_only_while_it_lasts():
    with ft.sdpa():
        assert torch.nn.functional.scaled_dot_product_attention is ft.scaled_dot_product_attention
        with ft.sdpa():
            pass
        assert torch.nn.functional.scaled_dot_product_attention is ft.scaled_dot_product_attention
    assert torch.nn.functional.scaled_dot_product_attention is original


def test_autocast(make, device, launches):
    with ft.sdpa(), torch.autocast(device, torch.bfloat16):
        o = torch.nn.functional.scaled_dot_product_attention(*make())
    assert o.dtype == torch.bfloat16 and launches


@pytest.mark.parametrize("dynamic", [True, False])
def test_compile(make, device, dynamic):
    torch._dynamo.reset()
    mask = torch.ones(29, 29, dtype=torch.bool, device=device).tril(3)

    def block(q, k, v):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, is_causal=True) + attend(q, k, v, attn_mask=mask)
    tensors = make()
    with ft.sdpa():
        got = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")(*tensors)
    want = block(*tensors)
    assert (got - want).abs().max() < 2e-5
    for mine, other in zip(torch.autograd.grad(got.sum(), tensors), torch.autograd.grad(want.sum(), tensors)):
        assert (mine - other).abs().max() < 1e-4


# ---- The registry of PyTorch ---------------------------------------------------------------------------------------

attention = torch.nn.attention
needs_registry = pytest.mark.skipif(not hasattr(attention, "register_flash_attention_impl"),
                                    reason="this version of PyTorch has no registry of flash attention")


@needs_registry
def test_is_registered_and_not_activated():
    assert "flashwright" in attention.list_flash_attention_impls()
    assert attention.current_flash_attention_impl() is None


@needs_registry
@pytest.mark.skipif(torch.version.cuda is None, reason="this PyTorch is built without CUDA")
def test_is_put_in_place_and_taken_away(make, launches):
    def overridden():
        operator = "aten::_scaled_dot_product_flash_attention"
        return {name for name in ("", "_backward") if "_torch_flash.py" in torch._C._dispatch_dump(operator + name)}
    assert overridden() == set()
    for _ in range(2):
        attention.activate_flash_attention_impl("flashwright")
        try:
            assert attention.current_flash_attention_impl() == "flashwright"
            assert overridden() == {"", "_backward"}
        finally:
            attention.restore_flash_attention_impl()
        assert overridden() == set()


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_the_registry_puts_in_place(make, launches, is_causal):
    """The functions themselves, which are called with CUDA tensors once they are active."""
    q, k, v = (x.detach() for x in make())
    result = _torch_flash._forward(q, k, v, 0.0, is_causal, scale=0.3)
    out, lse, _, _, longest_q, longest_kv, seed, offset, debug = result
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    want = original(*leaves, is_causal=is_causal, scale=0.3)
    assert (out - want).abs().max() < 2e-5 and (longest_q, longest_kv) == (29, 29) and debug.numel() == 0
    d_out = torch.randn_like(want)
    got = _torch_flash._backward(d_out, q, k, v, out, lse, None, None, 29, 29, 0.0, is_causal, seed, offset, scale=0.3)
    for mine, other in zip(got, torch.autograd.grad(want, leaves, d_out)):
        assert mine.shape == other.shape and (mine - other).abs().max() < 1e-4
    assert [a[:2] for a in launches] == [(way, "causal" if is_causal else "none") for way in ("forward", "backward")]


def test_dropout_through_the_registry(make):
    q, k, v = (x.detach() for x in make())
    torch.manual_seed(4)
    out, lse, *_, seed, offset, _ = _torch_flash._forward(q, k, v, 0.5)
    torch.manual_seed(4)
    leaves = [x.transpose(1, 2).clone().requires_grad_() for x in (q, k, v)]
    want = ft.attention(*leaves, dropout=0.5)
    assert torch.equal(out.transpose(1, 2), want)
    d_out = torch.ones_like(out)
    got = _torch_flash._backward(d_out, q, k, v, out, lse, None, None, 29, 29, 0.5, False, seed, offset)
    for mine, other in zip(got, torch.autograd.grad(want.sum(), leaves)):
        assert torch.allclose(mine.transpose(1, 2), other, atol=1e-6)


@needs_registry
@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 100])  # PyTorch fills 100 up to 104, which flashwright has as well
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.2}])
def test_activated(make, launches, dim, options):
    tensors = make(dim=dim, dtype=torch.bfloat16)
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        want = original(*tensors, **options)
        gradients = torch.autograd.grad(want.sum(), tensors)
        attention.activate_flash_attention_impl("flashwright")
        try:
            assert attention.current_flash_attention_impl() == "flashwright"
            got = original(*tensors, **options)
            mine = torch.autograd.grad(got.sum(), tensors)
        finally:
            attention.restore_flash_attention_impl()
        assert [a[0] for a in launches] == ["forward", "backward"]
        original(*tensors)
        assert len(launches) == 2
    assert (got - want).abs().max() < 0.03
    assert all((a - b).abs().max() < 0.1 for a, b in zip(mine, gradients))


@needs_registry
@pytest.mark.gpu
def test_activated_and_refused(make, launches, monkeypatch):
    """What is refused goes to PyTorch's kernel, and not round in a circle."""
    monkeypatch.setattr(_torch_flash, "refusal", lambda *a: "a reason")
    tensors = make(dim=64, dtype=torch.bfloat16)
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        want = original(*tensors, is_causal=True)
        gradients = torch.autograd.grad(want.sum(), tensors)
        attention.activate_flash_attention_impl("flashwright")
        try:
            got = original(*tensors, is_causal=True)
            mine = torch.autograd.grad(got.sum(), tensors)
        finally:
            attention.restore_flash_attention_impl()
    assert torch.equal(got, want) and not launches
    assert all(torch.allclose(a, b) for a, b in zip(mine, gradients))
