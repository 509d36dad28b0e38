"""flashwright.jax on the CPU, and on a GPU where jax has one."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")  # for the test with two devices

import flashwright  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from reference import Reference  # noqa: E402

jax = pytest.importorskip("jax")
jnp = jax.numpy

import flashwright.jax  # noqa: E402

attention = flashwright.jax.attention
rng = np.random.default_rng(7)
WEIGHTS = rng.standard_normal(256, dtype=np.float32)  # of a sum whose gradient is taken


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.cpu), "gpu"], autouse=True)
def device(request):
    """Each test once with JAX on the CPU, and once on a GPU."""
    try:
        found = jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip(f"jax has no {request.param}")
    with jax.default_device(found):
        yield request.param


def tensors(seq_q=65, seq_kv=70, batch=2, heads=(4, 2), dims=(16, 24), dtype=np.float32):
    shapes = [(batch, seq_q, heads[0], dims[0]), (batch, seq_kv, heads[1], dims[0]), (batch, seq_kv, heads[1], dims[1])]
    return [rng.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]


def near(got, want, bound=2e-5):
    want = np.asarray(want)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, atol=bound * (1 + np.abs(want).max()), rtol=0)


def total(o):
    return (o * WEIGHTS[:o.shape[-1]]).sum()


def d_total(o):
    return np.broadcast_to(WEIGHTS[:o.shape[-1]], o.shape)


KEEP = rng.random((65, 70)) < 0.6
SLOPES = np.array([0.5, 0.25, 0.1, 0.0], np.float32)
OPTIONS = [{}, {"mask": "causal"}, {"mask": (9, 3), "q_position": 2}, {"softmax_scale": 0.4, "softcap": 2.0},
           {"mask": "causal", "alibi_slopes": SLOPES}, {"mask": "blocks"}, {"deterministic": True, "mask": "causal"}]


def for_both(options):
    """The options of flashwright.jax and those of the reference."""
    mine, other = dict(options), dict(options)
    other.pop("deterministic", None)
    if options.get("mask") == "blocks":
        mine["mask"], other["mask"] = flashwright.Blocks.from_mask(KEEP, 16, 32), KEEP
    elif isinstance(options.get("mask"), tuple):
        other["mask"] = "window:{},{}".format(*options["mask"])
    return mine, other


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_values_and_gradients(options, wrap):
    mine, other = for_both(options)
    q, k, v = tensors()
    want = Reference(q, k, v, **other)
    o, lse = wrap(lambda q, k, v: attention(q, k, v, return_lse=True, **mine))(q, k, v)
    assert o.dtype == jnp.float32 and lse.dtype == jnp.float32
    near(o, want.o)
    near(lse, want.lse)
    gradients = wrap(jax.grad(lambda *x: total(attention(*x, **mine)), (0, 1, 2)))(q, k, v)
    for got, exact in zip(gradients, want.gradients(d_total(want.o))):
        near(got, exact)


def test_gradient_of_the_lse():
    q, k, v = tensors()
    want = Reference(q, k, v, "causal")
    d_lse = rng.standard_normal(want.lse.shape, dtype=np.float32)

    def loss(q, k, v):
        o, lse = attention(q, k, v, "causal", return_lse=True)
        return total(o) + (lse * d_lse).sum()
    for got, exact in zip(jax.grad(loss, (0, 1, 2))(q, k, v), want.gradients(d_total(want.o), d_lse)):
        near(got, exact)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_types_of_two_bytes(dtype):
    q, k, v = (jnp.asarray(x, dtype) for x in tensors())
    o, d_q = jax.value_and_grad(lambda q: total(attention(q, k, v, "causal").astype(jnp.float32)))(q)
    want = Reference(*(np.asarray(x, np.float32) for x in (q, k, v)), "causal")
    assert attention(q, k, v).dtype == dtype and d_q.dtype == dtype
    near(attention(q, k, v, "causal"), want.o, 0.01)
    near(d_q, want.gradients(d_total(want.o))[0], 0.02)


def seed_of(key):
    low, high = (int(x) for x in jax.random.bits(key, (2,), jnp.uint32))
    return high << 32 | low


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_dropout(make_key):
    q, k, v = tensors(20, 24)
    key = make_key(3)
    want = Reference(q, k, v, dropout=0.3, seed=seed_of(key))
    run = jax.jit(lambda key, *x: attention(*x, dropout=0.3, key=key))
    near(run(key, q, k, v), want.o)
    assert np.abs(run(make_key(4), q, k, v) - want.o).max() > 0.01  # a key is no constant of the program
    gradients = jax.grad(lambda *x: total(run(key, *x)), (0, 1, 2))(q, k, v)
    for got, exact in zip(gradients, want.gradients(d_total(want.o))):
        near(got, exact)


class TestVmap:
    def test_of_everything(self):
        q, k, v = (np.stack(x) for x in zip(tensors(), tensors(), tensors()))
        got = jax.vmap(lambda *x: attention(*x, "causal"))(q, k, v)
        for mine, *x in zip(got, q, k, v):
            near(mine, Reference(*x, "causal").o)

    def test_of_some_and_their_gradients(self):
        """Keys that all share: their gradient is a sum."""
        (q, k, v), (other, _, _) = tensors(), tensors()

        def loss(queries, k, v):
            return sum(map(total, jax.vmap(lambda q: attention(q, k, v, "causal"))(queries)))
        gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(np.stack((q, other)), k, v)
        parts = [Reference(x, k, v, "causal") for x in (q, other)]
        dq, dk, dv = zip(*(part.gradients(d_total(part.o)) for part in parts))
        for got, exact in zip(gradients, (np.stack(dq), sum(dk), sum(dv))):
            near(got, exact)

    def test_in_a_vmap(self):
        q, k, v = (np.stack((np.stack((a, b), 3), np.stack((c, d), 3)))  # (2, batch, seq, heads, 2, dim)
                   for a, b, c, d in zip(tensors(), tensors(), tensors(), tensors()))
        got = jax.vmap(jax.vmap(attention, 3, 3))(q, k, v)
        for i, j in np.ndindex(2, 2):
            near(got[i, ..., j, :], Reference(*(x[i, ..., j, :] for x in (q, k, v))).o)

    def test_of_slopes_and_blocks(self):
        q, k, v = tensors()
        slopes = np.stack((SLOPES, 2 * SLOPES))
        got = jax.vmap(lambda s: attention(q, k, v, alibi_slopes=s))(slopes)
        for mine, s in zip(got, slopes):
            near(mine, Reference(q, k, v, alibi_slopes=s).o)
        keep = rng.random((2, 4, 65, 70)) < 0.5  # for each batch entry and head
        got = jax.vmap(lambda q: attention(q, k, v, flashwright.Blocks.from_mask(keep, 32, 32)))(np.stack((q, 2 * q)))
        near(got[1], Reference(2 * q, k, v, keep).o)

    def test_of_keys(self):
        """Each has its own bits, as if it were alone; a key that all share gives all the same."""
        q, k, v = tensors(20, 24)
        keys = jax.random.split(jax.random.key(5), 3)
        got = jax.jit(jax.vmap(lambda key: attention(q, k, v, dropout=0.5, key=key)))(keys)
        for mine, key in zip(got, keys):
            near(mine, Reference(q, k, v, dropout=0.5, seed=seed_of(key)).o)
        shared = jax.vmap(lambda q: attention(q, k, v, dropout=0.5, key=keys[0]))(np.stack((q, q)))
        assert (shared[0] == shared[1]).all()
        near(shared[0], got[0])


def test_lengths_of_0_and_no_visible_key():
    q, k, v = tensors(5, 0)
    assert (attention(q, k, v) == 0).all()
    q, k, v = tensors(9, 4)
    o, lse = attention(q, k, v, "causal", return_lse=True)
    assert (o[:, :5] == 0).all() and np.isneginf(lse[:, :, :5]).all() and np.isfinite(lse[:, :, 5:]).all()


def test_in_a_program():
    """A layer under scan, remat and grad: a training step."""
    q, _, _ = tensors(33, 33, heads=(2, 2), dims=(16, 16))
    mix = rng.standard_normal((3, 16, 16), dtype=np.float32) / 4

    @jax.checkpoint
    def layer(x, w):
        return x + attention(x @ w, x, x, "causal"), None

    def plain(x, w):
        scores = jnp.einsum("bihd,bjhd->bhij", x @ w, x) / 4
        weights = jax.nn.softmax(jnp.where(np.tri(33, dtype=bool), scores, -jnp.inf))
        return x + jnp.einsum("bhij,bjhd->bihd", weights, x), None
    got, want = (jax.jit(jax.grad(lambda w, f=f: total(jax.lax.scan(f, q, w)[0])))(mix) for f in (layer, plain))
    near(got, want, 1e-3 if jax.default_backend() == "gpu" else 1e-4)


def test_two_devices(device):
    if device != "cpu" or len(jax.devices("cpu")) < 2 or not hasattr(jax, "shard_map"):
        pytest.skip("jax has one device, or no jax.shard_map")
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("batch",))
    spec = jax.sharding.PartitionSpec("batch")
    q, k, v = tensors()
    run = jax.shard_map(lambda *x: attention(*x, "causal"), mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    near(jax.jit(run)(q, k, v), Reference(q, k, v, "causal").o)


class TestErrors:
    @pytest.mark.parametrize("change, match", [
        (lambda q, k, v: (q, k, v.astype(np.float16)), "v: given float16; expected float32, the type of q"),
        (lambda q, k, v: (q.astype(np.int32), k, v), "q: given int32; expected float16, bfloat16 or float32"),
        (lambda q, k, v: (q[0], k, v), "q: given rank 3; expected rank 4"),
        (lambda q, k, v: (q, k[..., :8], v), r"k: given shape \(2, 70, 2, 8\); expected \(2, seq_kv, heads_kv, 16\)"),
        (lambda q, k, v: (q, k, v[:, :9]), r"v: given shape \(2, 9, 2, 24\); expected \(2, 70, 2, head_dim_v\)"),
        (lambda q, k, v: (q[:, :, :3], k, v), "k: given 2 heads; expected a number that divides 3"),
        (lambda q, k, v: (q[..., :12], k[..., :12], v), "head_dim is 12; allowed: 8..256 in steps of 8")])
    def test_tensors(self, change, match):
        with pytest.raises(flashwright.FlashwrightError, match=match):
            jax.jit(attention)(*change(*tensors()))

    def test_options(self):
        x = tensors()
        with pytest.raises(flashwright.FlashwrightTypeError, match="key: given None; expected a key of jax.random"):
            attention(*x, dropout=0.1)
        with pytest.raises(flashwright.FlashwrightTypeError, match="softcap: given a traced value; expected a Python"):
            jax.jit(lambda cap: attention(*x, softcap=cap))(1.0)
        with pytest.raises(flashwright.FlashwrightTypeError, match="mask: given 3; expected 'none', 'causal'"):
            attention(*x, 3)
        lists = flashwright.Blocks.from_mask(np.ones((4, 1, 65, 70), bool))
        with pytest.raises(flashwright.FlashwrightValueError, match="mask: given block lists of batch 4 and 1 heads"):
            attention(*x, lists)
        with pytest.raises(flashwright.FlashwrightValueError, match="q_position: given"):
            attention(*x, "causal", q_position=1 << 40)
        with pytest.raises(flashwright.FlashwrightValueError, match="dropout"):
            attention(*x, dropout=1.5, key=jax.random.key(0))

    def test_of_the_library_when_it_runs(self):
        """Lists for other lengths: only the launch can tell."""
        with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT: blocks: given lists for"):
            attention(*tensors(64), flashwright.Blocks.from_mask(KEEP)).block_until_ready()

    def test_second_derivatives(self):
        q, k, v = tensors()
        with pytest.raises(ValueError, match="cannot be differentiated"):
            jax.grad(lambda q: jax.grad(lambda q: total(attention(q, k, v)))(q).sum())(q)
