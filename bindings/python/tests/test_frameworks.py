"""Arrays of other libraries, where they are installed."""

import flashwright
import numpy as np
import pytest

pytestmark = pytest.mark.cpu
rng = np.random.default_rng(3)


def tensors(dtype=np.float32):
    return [rng.standard_normal((2, 9, heads, 16)).astype(dtype) for heads in (4, 2, 2)]


def test_anything_with_the_array_api():
    class Wrapped:
        """A NumPy array in the clothes of another library."""

        def __init__(self, array):
            self.array = array

        def __getattr__(self, name):
            return getattr(self.array, name)

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __array_namespace__(self):
            return np

    q, k, v = tensors()
    got = flashwright.attention(Wrapped(q), Wrapped(k), v, "causal")
    assert isinstance(got, np.ndarray) and (got == flashwright.attention(q, k, v, "causal")).all()


def test_numpy_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in tensors())
    o = flashwright.attention(q, k, v, "causal")
    want = flashwright.attention(*(x.astype(np.float32) for x in (q, k, v)), "causal")
    assert o.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(o.astype(np.float32), want, atol=0.03)


class TestTorch:
    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_forward_and_backward(self, dtype):
        torch = self.torch
        q, k, v = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in tensors())
        o, lse = flashwright.attention(q, k, v, "causal", return_lse=True)
        assert isinstance(o, torch.Tensor) and o.dtype == q.dtype and lse.dtype == torch.float32
        ours = flashwright.attention_backward(o, q, k, v, o, lse, "causal")
        exact = [x.double().transpose(1, 2).requires_grad_() for x in (q, k, v)]
        want = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
        want.backward(o.double().transpose(1, 2))
        bound = 1e-5 if dtype == "float32" else 0.06
        torch.testing.assert_close(o.double(), want.detach().transpose(1, 2), atol=bound, rtol=bound)
        for mine, x in zip(ours, exact):
            torch.testing.assert_close(mine.double(), x.grad.transpose(1, 2), atol=bound, rtol=bound)

    def test_tensors_that_require_a_gradient(self):
        torch = self.torch
        q, k, v = (torch.from_numpy(x) for x in tensors())
        q.requires_grad_()
        with pytest.raises(flashwright.FlashwrightValueError, match="q: given a tensor that requires a gradient"):
            flashwright.attention(q, k, v)
        with torch.no_grad():
            flashwright.attention(q, k, v)

    def test_dtypes_and_devices(self):
        torch = self.torch
        q, k, v = (torch.from_numpy(x) for x in tensors())
        with pytest.raises(flashwright.FlashwrightTypeError, match="q: given torch.float64; expected torch.float16"):
            flashwright.attention(q.double(), k, v)
        with pytest.raises(flashwright.FlashwrightValueError, match="k: given memory of meta; expected"):
            flashwright.attention(q, k.to("meta"), v)
        with pytest.raises(flashwright.FlashwrightTypeError, match="k: given float16; expected float32, the type of q"):
            flashwright.attention(q, k.half(), v)

    def test_beside_numpy(self):
        q, k, v = tensors()
        got = flashwright.attention(self.torch.from_numpy(q), k, v)
        assert (got.numpy() == flashwright.attention(q, k, v)).all()


def test_jax():
    jax = pytest.importorskip("jax")
    q, k, v = tensors()
    want = flashwright.attention(q, k, v, "causal")
    got, lse = flashwright.attention(*map(jax.numpy.asarray, (q, k, v)), "causal", return_lse=True)
    assert isinstance(got, jax.Array) and isinstance(lse, jax.Array) and (np.asarray(got) == want).all()
    halves = [jax.numpy.asarray(x, jax.numpy.bfloat16) for x in (q, k, v)]
    assert flashwright.attention(*halves).dtype == jax.numpy.bfloat16
    with pytest.raises(flashwright.FlashwrightValueError, match="o: given a JAX array, which cannot be written"):
        flashwright.attention(q, k, v, o=jax.numpy.asarray(want))


def test_cupy():
    cupy = pytest.importorskip("cupy")
    q, k, v = tensors(np.float16)
    with cupy.cuda.Stream(non_blocking=True):
        o = flashwright.attention(*map(cupy.asarray, (q, k, v)), "causal")
        got = cupy.asnumpy(o)
    np.testing.assert_allclose(got, flashwright.attention(q, k, v, "causal"), atol=4e-3)
