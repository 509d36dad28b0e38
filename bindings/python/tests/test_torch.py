"""flashwright.torch: operators, derivatives, tracing, autocast, vmap. `--device cuda` runs all of it on a GPU."""

import contextlib
import os
import signal
import subprocess
import sys

import flashwright
import numpy as np
import pytest
from reference import Reference

torch = pytest.importorskip("torch")
import flashwright.torch as ft  # noqa: E402

pytestmark = pytest.mark.cpu
sdp = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture
def make(device):
    """Tensors q, k, v with gradients, the same ones for the same sizes."""
    def make(batch=2, seq_q=37, seq_kv=53, heads_q=4, heads_kv=2, dim=16, dim_v=16, dtype=torch.float32, grad=True):
        generator = torch.Generator().manual_seed(11)
        shapes = [(batch, seq_q, heads_q, dim), (batch, seq_kv, heads_kv, dim), (batch, seq_kv, heads_kv, dim_v)]
        return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_(grad) for shape in shapes]
    return make


def bound(dtype):
    return {torch.float32: 3e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}[dtype]


def close(mine, want, dtype=torch.float32):
    mine, want = mine.detach().double().cpu(), torch.as_tensor(want).detach().double().cpu()
    assert mine.shape == want.shape
    assert (mine - want).abs().max() <= bound(dtype) * (1 + want.abs().max())


def check(q, k, v, mask="none", given=None, rng=None, **options):
    """Outputs and gradients, those of the LSE among them, against float64."""
    o, lse = ft.attention(q, k, v, mask if given is None else given, return_lse=True, rng=rng, **options)
    inputs = [x.detach().double().cpu().numpy() for x in (q, k, v)]
    if "alibi_slopes" in options:
        options["alibi_slopes"] = options["alibi_slopes"].cpu().numpy()
    if rng is not None:
        options["seed"], options["offset"] = rng.tolist()
    exact = Reference(*inputs, mask, **options)
    close(o, exact.o, q.dtype)
    seen = np.isfinite(exact.lse)
    close(lse[torch.from_numpy(seen)], exact.lse[seen], q.dtype)
    d_o = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o)
    d_lse = torch.randn(lse.shape, generator=torch.Generator().manual_seed(2)).to(lse)
    got = torch.autograd.grad((o, lse), (q, k, v), (d_o, d_lse))
    for mine, want in zip(got, exact.gradients(d_o.double().cpu().numpy(), d_lse.double().cpu().numpy())):
        close(mine, want, q.dtype)


# ---- Values and gradients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "causal", "window:9,0"])
def test_values_and_gradients(make, mask, dtype):
    check(*make(dtype=dtype), mask)


def test_threads_of_pytorch(make, device):
    """CPU kernels run on them: as many as it uses, and in a child of a process that has used them."""
    if device != "cpu":
        pytest.skip("threads of the CPU")
    tensors = make(seq_q=300, seq_kv=300, grad=False)
    want = ft.attention(*tensors)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            close(ft.attention(*tensors), want)
    finally:
        torch.set_num_threads(before)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        o = ft.attention(*tensors)  # compared without PyTorch, whose own threads hang here
        os._exit(0 if o.numpy().tobytes() == want.numpy().tobytes() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_import_leaves_the_compiler_of_pytorch_alone():
    """It takes seconds to import."""
    code = ("import sys, torch; before = 'torch._dynamo' in sys.modules; import flashwright.torch; "
            "sys.exit('torch._dynamo' in sys.modules and not before)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("mask", ["causal", "bools"])
def test_a_pytorch_that_does_not_lend_its_tensors(make, device, monkeypatch, mask):
    """Before 2.10 Python says where a tensor lies, and on what stream."""
    from flashwright import _torch_ops
    tensors = make()
    given = torch.rand(37, 53, generator=torch.Generator().manual_seed(2)).to(device) < 0.6 if mask == "bools" else mask

    def results():
        o, lse = ft.attention(*tensors, given, dropout=0.1, return_lse=True, rng=torch.tensor([3, 4], device=device))
        return o, lse, *torch.autograd.grad(o.sum() + lse.sum(), tensors)
    want = results()
    monkeypatch.setattr(_torch_ops, "_HAS_EXCHANGE", False)
    monkeypatch.setattr(_torch_ops, "_arguments", _torch_ops._from_views)
    for mine, other in zip(results(), want):
        close(mine, other)
    with pytest.raises(flashwright.FlashwrightTypeError, match="q: given torch.float64; expected torch.float16"):
        ft.attention(tensors[0].double(), *tensors[1:])


@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"softmax_scale": 0.4}, {"q_position": 0}, {"q_position": -9}])
def test_options(make, options):
    check(*make(), "causal", **options)


def test_alibi(make, device):
    check(*make(), "causal", alibi_slopes=torch.tensor([0.5, 0.25, 0.1, -0.2], device=device))


@pytest.mark.parametrize("sizes", [{"seq_q": 0}, {"seq_kv": 0}, {"batch": 0}, {"seq_q": 1, "seq_kv": 1},
                                   {"dim": 72, "dim_v": 24}, {"heads_q": 3, "heads_kv": 3}])
def test_sizes(make, sizes):
    tensors = make(**sizes)
    if min(tensors[0].numel(), tensors[1].numel()):
        check(*tensors)
        return
    o, lse = ft.attention(*tensors, return_lse=True)
    assert (o == 0).all() and torch.isneginf(lse).all()
    assert all((x == 0).all() for x in torch.autograd.grad(o.sum(), tensors))


def test_a_window_as_a_tuple(make):
    tensors = make()
    assert torch.equal(ft.attention(*tensors, (9, 0)), ft.attention(*tensors, "window:9,0"))


@pytest.mark.parametrize("batch, heads, blocks", [(1, 1, (128, 128)), (2, 4, (16, 32)), (2, 1, (5, 64))])
def test_a_mask_of_ones_own(make, device, batch, heads, blocks):
    keep = torch.rand(batch, heads, 37, 53, generator=torch.Generator().manual_seed(3)) < 0.4
    keep[..., :16, :32] = True  # blocks that are full,
    keep[..., 16:32, :] = False  # blocks that are empty, and queries that see no key
    check(*make(), keep.numpy(), given=ft.block_lists(keep.to(device), *blocks))


def test_a_tensor_as_a_mask(make, device):
    tensors = make(seq_q=53)
    keep = torch.ones(53, 53, dtype=torch.bool, device=device).tril()
    close(ft.attention(*tensors, keep), ft.attention(*tensors, "causal"))


def test_any_strides(make):
    tensors = make(grad=False)
    want = ft.attention(*tensors, "causal")
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in tensors]
    o = ft.attention(*moved, "causal")
    assert torch.equal(o, want) and o.is_contiguous()
    o.sum().backward()  # its gradient is expanded: strides of 0
    again = [x.clone().requires_grad_() for x in tensors]
    (ft.attention(*again, "causal") * torch.ones_like(want)).sum().backward()
    assert all(torch.allclose(a.grad, b.grad, atol=1e-6) for a, b in zip(moved, again))


def test_gradients_that_are_not_wanted(make):
    q, k, v = make()
    k.requires_grad_(False)
    ft.attention(q, k, v).sum().backward()
    assert q.grad is not None and v.grad is not None and k.grad is None


def test_a_gradient_of_the_lse_alone(make):
    tensors = make()
    lse = ft.attention(*tensors, return_lse=True)[1]
    dq, dk = torch.autograd.grad(lse.sum(), tensors[:2])
    close(dq, Reference(*(x.detach().cpu().numpy() for x in tensors)).gradients(
        np.zeros((2, 37, 4, 16)), np.ones((2, 4, 37)))[0])


def test_second_derivatives_are_refused(make):
    tensors = make()
    dq, = torch.autograd.grad(ft.attention(*tensors).square().sum(), tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="attention has no second derivative"):
        dq.sum().backward()


@contextlib.contextmanager
def through_the_operator():
    """A mode, of which an operator has to be told."""
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))
    seen = []
    with Mode():
        yield seen


def test_the_operator_and_the_short_way_agree(make):
    tensors = make()
    o = ft.attention(*tensors, "causal")
    gradients = torch.autograd.grad(o.sum(), tensors)
    with through_the_operator() as seen:
        again = ft.attention(*tensors, "causal")
        also = torch.autograd.grad(again.sum(), tensors)
    assert {"flashwright.forward.default", "flashwright.backward.default"} <= set(seen)
    assert torch.equal(o, again) and all(map(torch.equal, gradients, also))


# ---- Dropout and determinism ---------------------------------------------------------------------------------------


def test_dropout(make, device):
    check(*make(batch=1, seq_q=9, seq_kv=40), "causal", dropout=0.25, rng=torch.tensor([42, 3], device=device))


def test_dropout_is_drawn_from_the_generator(make, device):
    tensors = make()

    def draw(seed):
        torch.manual_seed(seed)
        return ft.attention(*tensors, dropout=0.5)
    first = draw(1)
    assert torch.equal(first, draw(1)) and not torch.equal(first, draw(2))
    assert not torch.equal(draw(1), ft.attention(*tensors, dropout=0.5))  # the next call draws anew
    torch.manual_seed(1)
    assert torch.equal(first, ft.attention(*tensors, dropout=0.5, rng=torch.randint(1 << 62, (2,), device=device)))


def test_dropout_in_an_activation_checkpoint(make):
    from torch.utils.checkpoint import checkpoint
    tensors = make()

    def gradients(function):
        torch.manual_seed(5)
        return torch.autograd.grad(function().sum(), tensors)

    def attend(*tensors):
        return ft.attention(*tensors, dropout=0.5)
    plain = gradients(lambda: attend(*tensors))
    # A checkpoint keeps the generators of the devices that it sees among its arguments.
    again = gradients(lambda: checkpoint(attend, *tensors, use_reentrant=False))
    assert all(torch.allclose(mine, other, rtol=1e-4, atol=1e-5) for mine, other in zip(plain, again))


def test_the_deterministic_flag_reaches_the_config(make, monkeypatch):
    from flashwright import _torch_ops
    asked = []
    monkeypatch.setattr(_torch_ops, "request", lambda *a: asked.append(a) or flashwright._attention.request(*a))
    tensors = make()
    o = ft.attention(*tensors)
    torch.use_deterministic_algorithms(True)
    try:
        torch.autograd.grad(o.sum(), tensors, retain_graph=True)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.autograd.grad(o.sum(), tensors)
    torch.autograd.grad(ft.attention(*tensors, deterministic=True).sum(), tensors)
    assert [a[6] for a in asked if a[0] == "backward"] == [True, False, True]


# ---- Autocast and vmap ---------------------------------------------------------------------------------------------


def test_autocast(make, device):
    tensors = make()
    with torch.autocast(device, torch.bfloat16):
        o = ft.attention(*tensors, "causal")
    assert o.dtype == torch.bfloat16
    close(o, Reference(*(x.detach().cpu().numpy() for x in tensors), "causal").o, torch.bfloat16)
    o.float().sum().backward()
    assert tensors[0].grad.dtype == torch.float32


def test_vmap(make, device):
    q, k, v = make(batch=6, grad=False)
    want = ft.attention(q, k, v, "causal", return_lse=True)
    split = [x.unflatten(0, (3, 2)) for x in (q, k, v)]
    got = torch.vmap(lambda q, k, v: ft.attention(q, k, v, "causal", return_lse=True))(*split)
    assert all(torch.equal(a.flatten(0, 1), b) for a, b in zip(got, want))
    one = torch.vmap(lambda q: ft.attention(q, k[:2], v[:2]))(split[0])  # keys that all share
    assert torch.allclose(one[1], ft.attention(q[2:4], k[:2], v[:2]), atol=1e-6)
    last = torch.vmap(lambda q: ft.attention(q, k[:2], v[:2]), in_dims=4)(split[0].movedim(0, 4).contiguous())
    assert torch.allclose(last, one, atol=1e-6)
    slopes = torch.rand(3, 4, device=device)
    mapped = torch.vmap(lambda q, s: ft.attention(q, k[:2], v[:2], alibi_slopes=s))(split[0], slopes)
    assert torch.allclose(mapped[2], ft.attention(q[4:], k[:2], v[:2], alibi_slopes=slopes[2]), atol=1e-6)


def test_gradients_of_each_sample(make):
    q, k, v = make(batch=3, grad=False)

    def loss(q, k, v):
        return ft.attention(q[None], k[None], v[None], "causal").square().sum()
    each = torch.vmap(torch.func.grad(loss, (0, 1, 2)))(q, k, v)
    for at in range(3):
        leaves = [x[at].clone().requires_grad_() for x in (q, k, v)]
        want = torch.autograd.grad(loss(*leaves), leaves)
        alone = torch.func.grad(loss, (0, 1, 2))(q[at], k[at], v[at])
        assert all(torch.allclose(a[at], b, atol=1e-5) for a, b in zip(each, want))
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(alone, want))
    with pytest.raises(RuntimeError, match="attention has no second derivative"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q, k[0], v[0]).sum())(q[0])


# ---- Tracing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask, softcap, dropout", [("causal", None, 0.0), ("none", None, 0.25), ("none", 2.0, 0.0)])
def test_opcheck_of_the_forward_operator(make, device, mask, softcap, dropout):
    q, k, v = make()
    rng = torch.tensor([1, 2], device=device) if dropout else None
    torch.library.opcheck(torch.ops.flashwright.forward.default, (
        q, k, v, None, rng, None, (), 5, mask, None, softcap, dropout, False))


def test_opcheck_with_block_lists_and_slopes(make, device):
    q, k, v = make()
    blocks = ft.block_lists(torch.ones(37, 53, dtype=torch.bool, device=device).tril())
    torch.library.opcheck(torch.ops.flashwright.forward.default, (
        q, k, v, torch.ones(4, device=device), None, blocks.lists, blocks.sizes, None, "blocks", 0.3, None, 0.0, False))


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False)])
def test_opcheck_of_the_backward_operator(make, wanted):
    q, k, v = make(grad=False)
    o, lse = ft.attention(q, k, v, "causal", return_lse=True)
    torch.library.opcheck(torch.ops.flashwright.backward.default, (
        torch.ones_like(o), torch.ones_like(lse), q, k, v, o, lse, None, None, None, (), None, "causal", None, None,
        0.0, False, wanted))


class Counter:
    """A backend of torch.compile that counts its graphs."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, module, inputs):
        from torch._dynamo.backends.debugging import aot_eager
        self.graphs += 1
        return aot_eager(module, inputs)


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [True, None, False])
def test_compile(make, device, fresh, dynamic):
    keep = torch.rand(37, 53, generator=torch.Generator().manual_seed(4)).to(device) < 0.5

    def block(q, k, v):
        y = ft.attention(q * 1.5, k, v, "causal", softcap=3.0) + ft.attention(q, k, v, (5, 0), q_position=2)
        return y + ft.attention(q, k, v, keep) * 2
    tensors = make()
    want = block(*tensors)
    got = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")(*tensors)
    close(got, want)
    for mine, other in zip(torch.autograd.grad(got.sum(), tensors), torch.autograd.grad(want.sum(), tensors)):
        close(mine, other)


def work_done():
    """What compiling and tuning add to."""
    listed = flashwright.cache("ls")
    return sorted(kernel["key"] for kernel in listed["kernels"]), listed["tuning"]


def test_other_lengths_compile_nothing(make, fresh):
    counter = Counter()
    step = torch.compile(lambda *x: ft.attention(*x, "causal"), fullgraph=True, dynamic=True, backend=counter)

    def run(**sizes):
        tensors = make(**sizes)
        o = step(*tensors)
        o.sum().backward()
        close(o, Reference(*(x.detach().cpu().numpy() for x in tensors), "causal").o)
    run(batch=3)  # no two sizes are equal, so that no two share a symbol
    graphs, before = counter.graphs, work_done()
    for seq_q, seq_kv, batch in [(38, 54, 3), (17, 90, 2), (64, 64, 5), (100, 192, 4)]:  # one class of docs/tuning.md
        run(seq_q=seq_q, seq_kv=seq_kv, batch=batch)
    assert work_done() == before
    run(seq_q=3, seq_kv=200)  # another class, which may have a kernel of its own, but is the same graph
    assert counter.graphs == graphs and work_done()[1] == before[1]


def test_dropout_under_compile(make, fresh):
    tensors = make()

    def drop(q, k, v):
        return ft.attention(q, k, v, dropout=0.5)
    compiled = torch.compile(drop, fullgraph=True, backend="aot_eager")
    torch.manual_seed(7)
    first, second = compiled(*tensors), compiled(*tensors)
    torch.manual_seed(7)
    want = drop(*tensors)
    assert torch.equal(first, want) and not torch.equal(first, second)
    gradients = torch.autograd.grad(first.sum(), tensors), torch.autograd.grad(want.sum(), tensors)
    assert all(map(torch.equal, *gradients))


def test_some_cases_of_the_grid(device):
    import random

    import torch_grid
    small = [case for case in torch_grid.cases() if max(case[4]) <= 256]
    for case in random.Random(5).sample(small, 6):
        assert torch_grid.run(case, device) == []


# ---- Errors --------------------------------------------------------------------------------------------------------


def test_errors_name_the_argument(make, device):
    q, k, v = make(grad=False)
    value, kind = flashwright.FlashwrightValueError, flashwright.FlashwrightTypeError
    for error, text, call in [
        (kind, "k: given float16; expected float32, the type of q", lambda: ft.attention(q, k.half(), v)),
        (kind, "q: given (torch.)?float64; expected (torch.)?float16", lambda: ft.attention(q.double(), k, v)),
        (value, "v: given rank 3; expected rank 4", lambda: ft.attention(q, k, v[0])),
        (value, "q: .*stride", lambda: ft.attention(q.transpose(2, 3).contiguous().transpose(2, 3), k, v)),
        (kind, "mask: given a list", lambda: ft.attention(q, k, v, [1])),
        (kind, "mask: given torch.float32; expected a tensor of bools", lambda: ft.attention(q, k, v, q[0, 0])),
        (value, "blocks: given lists for a mask of length 4 x 16", lambda: ft.attention(q, k, v, q[0, 0] > 0)),
        (value, "rng: given torch.float32 of shape", lambda: ft.attention(q, k, v, dropout=0.5, rng=q[0, 0, 0, :2])),
        (value, "alibi_slopes: given a tensor that requires a gradient",
         lambda: ft.attention(q, k, v, alibi_slopes=torch.ones(4, device=device, requires_grad=True))),
    ]:
        with pytest.raises(error, match=text):
            call()
    with pytest.raises(value, match="head_dim is 20; allowed: 8..256"):
        ft.attention(*make(dim=20, grad=False))
    # The meta device belongs to shapes alone.
    assert ft.attention(q.to("meta"), k.to("meta"), v.to("meta")).shape == q.shape


# ---- CUDA ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_tensors_on_two_devices(make):
    q, k, v = make(grad=False)
    with pytest.raises(flashwright.FlashwrightValueError, match="k: given memory of cpu; expected memory of cuda:0"):
        ft.attention(q, k.cpu(), v)


@pytest.mark.gpu
def test_cuda_graphs(make):
    q, k, v = make(dtype=torch.bfloat16)
    d_o = torch.randn_like(q)

    def step():
        o = ft.attention(q, k, v, "causal", dropout=0.25)
        return (o, *torch.autograd.grad(o, (q, k, v), d_o))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # the warm-up that PyTorch asks for
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    first = [x.clone() for x in captured]
    graph.replay()
    assert all(torch.isfinite(x).all() for x in first)
    assert not torch.equal(first[0], captured[0])  # other bits of dropout in each replay


@pytest.mark.gpu
def test_capture_before_the_kernel_is_loaded(make):
    q, k, v = make(dtype=torch.float16, dim=200, dim_v=200, grad=False)  # a Config of no other test
    with pytest.raises(flashwright.CapturingError, match="make the same call once before the capture"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            ft.attention(q, k, v, "causal")
    torch.cuda.synchronize()
    ft.attention(q, k, v, "causal")


@pytest.mark.gpu
def test_the_mode_with_cuda_graphs(make, fresh):
    tensors = make(dtype=torch.bfloat16, seq_kv=37)
    step = torch.compile(lambda q, k, v: ft.attention(q, k, v, "causal"), fullgraph=True, mode="reduce-overhead")
    want = ft.attention(*tensors, "causal")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        got = step(*tensors)
        # What a graph has returned is gone in the next step, gradients too: they are not to be kept in the tensors.
        gradients = torch.autograd.grad(got.sum(), tensors)
        close(got, want.detach().cpu(), torch.bfloat16)
    for mine, other in zip(gradients, torch.autograd.grad(want.sum(), tensors)):
        close(mine, other.cpu(), torch.bfloat16)


@pytest.mark.gpu
def test_streams(make):
    q, k, v = make(grad=False, seq_q=512, seq_kv=512)
    want = ft.attention(q, k, v)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        later = q * 1  # enqueued behind the sleep: a launch on another stream would read it too early
        got = ft.attention(later, k, v)
    side.synchronize()
    assert torch.equal(got, want)
