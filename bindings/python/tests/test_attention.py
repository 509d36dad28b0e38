"""Numbers against the float64 reference: forward and backward, on NumPy arrays."""

import flashwright
import numpy as np
import pytest
from reference import Reference

pytestmark = pytest.mark.cpu
rng = np.random.default_rng(7)


def tensors(batch=2, seq_q=37, seq_kv=53, heads_q=4, heads_kv=2, dim=16, dim_v=16, dtype=np.float32):
    shapes = [(batch, seq_q, heads_q, dim), (batch, seq_kv, heads_kv, dim), (batch, seq_kv, heads_kv, dim_v)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def close(got, want, bound=2e-5):
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    assert np.abs(got - want).max(initial=0) <= bound * (1 + np.abs(want).max(initial=0))


def both(q, k, v, mask="none", bound=2e-5, given=None, **options):
    """Forward and backward, against the reference."""
    o, lse = flashwright.attention(q, k, v, mask if given is None else given, return_lse=True, **options)
    exact = Reference(q, k, v, mask, **options)
    close(o, exact.o, bound)
    seen = np.isfinite(exact.lse)
    assert (np.isneginf(lse) == ~seen).all()
    close(lse[seen], exact.lse[seen], bound)
    d_o = rng.standard_normal(o.shape).astype(q.dtype)
    d_lse = rng.standard_normal(lse.shape).astype(np.float32)
    got = flashwright.attention_backward(d_o, q, k, v, o, lse, mask if given is None else given, d_lse=d_lse, **options)
    for mine, want in zip(got, exact.gradients(d_o, d_lse)):
        close(mine, want, bound)


@pytest.mark.parametrize("mask", ["none", "causal", "window:9,0", "window:4,7", "window:-1,3"])
@pytest.mark.parametrize("q_position", [None, 0, 5, -20])
def test_masks(mask, q_position):
    both(*tensors(), mask, q_position=q_position)


def test_window_as_a_tuple():
    q, k, v = tensors()
    assert (flashwright.attention(q, k, v, (9, 0)) == flashwright.attention(q, k, v, "window:9,0")).all()


@pytest.mark.parametrize("batch, heads", [(1, 1), (2, 4)])
def test_blocks(batch, heads):
    q, k, v = tensors()
    keep = rng.random((batch, heads, 37, 53)) < 0.4
    keep[..., 3, :] = False  # a query that sees no key
    both(q, k, v, keep, given=flashwright.Blocks.from_mask(keep, 16, 32))


def test_blocks_of_a_plain_matrix():
    q, k, v = tensors(seq_q=20, seq_kv=20)
    blocks = flashwright.Blocks.from_mask(np.tri(20, dtype=bool), 8, 8)
    np.testing.assert_allclose(flashwright.attention(q, k, v, blocks), flashwright.attention(q, k, v, "causal"),
                               atol=1e-6)


@pytest.mark.parametrize("heads_q, heads_kv", [(1, 1), (6, 6), (6, 2), (5, 1)])
def test_grouped_heads(heads_q, heads_kv):
    both(*tensors(heads_q=heads_q, heads_kv=heads_kv), "causal")


@pytest.mark.parametrize("seq_q, seq_kv", [(1, 1), (1, 129), (130, 3), (7, 0), (0, 7), (97, 97)])
def test_lengths(seq_q, seq_kv):
    both(*tensors(seq_q=seq_q, seq_kv=seq_kv), "causal")


@pytest.mark.parametrize("dim, dim_v", [(8, 8), (64, 64), (24, 40), (72, 16)])
def test_head_dims(dim, dim_v):
    both(*tensors(dim=dim, dim_v=dim_v))


def test_half_precision():
    both(*tensors(dtype=np.float16), "causal", bound=4e-3)


@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"softmax_scale": 0.4}, {"softmax_scale": -0.1},
                                     {"alibi_slopes": np.float32([0.5, 0.25, 0.1, -0.2])},
                                     {"alibi_slopes": np.float32([[0.5, 0.25, 0.1, 0], [0.3, 0.2, 0.1, 0.4]]),
                                      "softcap": 1.5}])
def test_scores(options):
    both(*tensors(), "causal", **options)


def test_dropout():
    both(*tensors(batch=1, seq_q=9, seq_kv=40), "causal", dropout=0.25, seed=42, offset=3)


def test_dropout_follows_seed_and_offset():
    q, k, v = tensors()

    def run(seed, offset):
        return flashwright.attention(q, k, v, dropout=0.5, seed=seed, offset=offset)
    assert (run(1, 2) == run(1, 2)).all()
    assert (run(1, 2) != run(1, 3)).any() and (run(1, 2) != run(2, 2)).any()
    assert (run((1 << 64) - 1, (1 << 64) - 1) != run(0, 0)).any()


def test_strides():
    q, k, v = tensors()
    want = flashwright.attention(q, k, v, "causal")
    heads_first = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    assert (flashwright.attention(*heads_first, "causal") == want).all()
    wide = [np.concatenate([x, x], axis=3)[..., :16] for x in (q, k, v)]
    assert (flashwright.attention(*wide, "causal") == want).all()
    backwards = [np.ascontiguousarray(x[:, ::-1])[:, ::-1] for x in (q, k, v)]
    assert (flashwright.attention(*backwards, "causal") == want).all()


def test_outputs_that_are_given_are_written_and_handed_back():
    q, k, v = tensors()
    want, want_lse = flashwright.attention(q, k, v, return_lse=True)
    memory = np.full((2, 4, 37, 20), 3, np.float32)
    o, lse = memory.transpose(0, 2, 1, 3)[..., :16], np.empty((2, 4, 37), np.float32)
    got, got_lse = flashwright.attention(q, k, v, return_lse=True, o=o, lse=lse)
    assert got is o and got_lse is lse
    assert (o == want).all() and (lse == want_lse).all() and (memory[..., 16:] == 3).all()
    assert flashwright.attention(q, k, v, o=o) is o
    dk = np.empty_like(k)
    assert flashwright.attention_backward(o, q, k, v, o, lse, dk=dk)[1] is dk


def test_some_gradients_alone_have_the_same_bits():
    q, k, v = tensors()
    o, lse = flashwright.attention(q, k, v, return_lse=True)
    all_of_them = flashwright.attention_backward(o, q, k, v, o, lse, deterministic=True)
    for wanted in [("dq",), ("dk",), ("dv",), ("dv", "dq")]:
        got = flashwright.attention_backward(o, q, k, v, o, lse, gradients=wanted, deterministic=True)
        for name, mine, full in zip(("dq", "dk", "dv"), got, all_of_them):
            assert (mine is None) == (name not in wanted)
            assert mine is None or (mine == full).all()


def test_nothing_is_copied():
    """A key that changes after the arguments are made is seen by the launch."""
    from flashwright import _attention, _native
    q, k, v = tensors()
    o = np.empty_like(q)
    arguments = _native.Arguments(q, k, v, o)
    v[:] = 1
    _attention.request("forward", "none").kernel(arguments).launch(arguments)
    np.testing.assert_allclose(o, 1, atol=1e-5)


def test_read_only_inputs_are_fine():
    q, k, v = tensors()
    want = flashwright.attention(q, k, v)
    for x in (q, k, v):
        x.flags.writeable = False
    assert (flashwright.attention(q, k, v) == want).all()


def test_threads():
    from concurrent.futures import ThreadPoolExecutor
    q, k, v = tensors()
    want = flashwright.attention(q, k, v, "causal")
    with ThreadPoolExecutor(4) as pool:
        for o in pool.map(lambda _: flashwright.attention(q, k, v, "causal"), range(64)):
            assert (o == want).all()
