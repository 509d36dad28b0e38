"""Bad input, one by one: the right exception, and a message with the argument, its value and what is allowed."""

import flashwright
import numpy as np
import pytest

f32 = np.float32


def arrays(**changes):
    out = {"q": np.ones((2, 5, 4, 16), f32), "k": np.ones((2, 7, 2, 16), f32), "v": np.ones((2, 7, 2, 16), f32)}
    out.update(changes)
    return out


def of_rows(width):
    return np.ones((2, 5, 4, 2 * width), f32)[..., ::2]


def read_only(shape):
    array = np.zeros(shape, f32)
    array.flags.writeable = False
    return array


V, T = flashwright.FlashwrightValueError, flashwright.FlashwrightTypeError

FORWARD = [
    (T, {"q": 3}, "q: given an object of type int; expected a tensor"),
    (T, {"k": "text"}, "k: given an object of type str; expected a tensor"),
    (T, {"v": None}, "v: given None; expected a tensor"),
    (T, {"q": np.ones((2, 5, 4, 16))}, "q: given float64; expected float16, bfloat16 or float32"),
    (T, {"k": np.ones((2, 7, 2, 16), np.float16)}, "k: given float16; expected float32, the type of q"),
    (T, {"v": np.ones((2, 7, 2, 16), np.int32)}, "v: given int32; expected float32, the type of q"),
    (V, {"q": np.ones((5, 4, 16), f32)}, "q: given rank 3; expected rank 4"),
    (V, {"v": np.ones((7, 2, 16), f32)}, "v: given rank 3; expected rank 4"),
    (V, {"q": of_rows(16)}, "q: given stride 2 in the last dimension; expected stride 1"),
    (V, {"k": np.ones((3, 7, 2, 16), f32)}, r"k: given shape \(3, 7, 2, 16\); expected batch of q = 2"),
    (V, {"v": np.ones((2, 8, 2, 16), f32)}, r"v: given shape \(2, 8, 2, 16\); expected seq_kv of k = 7"),
    (V, {"k": np.ones((2, 7, 2, 24), f32)}, "k: given .*; expected head_dim = 16"),
    (V, {"k": np.ones((2, 7, 3, 16), f32), "v": np.ones((2, 7, 3, 16), f32)}, "k: given 3 kv heads for 4 q heads"),
    (V, {"q": np.ones((2, 5, 4, 12), f32), "k": np.ones((2, 7, 2, 12), f32)}, "head_dim is 12; allowed: 8..256"),
    (V, {"mask": "diagonal"}, "mask: 'diagonal' is unknown; allowed: none, causal, window:LEFT,RIGHT, blocks"),
    (T, {"mask": [1, 2]}, r"mask: given \[1, 2\]; expected 'none', 'causal'"),
    (V, {"mask": (-2, 0)}, "mask: given -2; expected -1 to"),
    (V, {"mask": "blocks"}, "blocks: given none; expected block lists"),
    (V, {"mask": flashwright.Blocks.from_mask(np.ones((4, 7), bool))}, "lists for a mask of length 4 x 7"),
    (V, {"dropout": 1.5}, "dropout is 1.5; allowed: from 0 to below 1"),
    (V, {"dropout": float("nan")}, "dropout: given nan; expected a finite number"),
    (T, {"softmax_scale": "big"}, "softmax_scale: given 'big'; expected a number"),
    (V, {"softcap": -1.0}, "softcap is -1"),
    (V, {"seed": -1}, "seed: given -1; expected 0 to 18446744073709551615"),
    (T, {"offset": 0.5}, "offset: given 0.5; expected an integer"),
    (V, {"q_position": 1 << 40}, "q_position: given 1099511627776; expected"),
    (V, {"alibi_slopes": np.ones(3, f32)}, r"alibi_slopes: given shape \(3\); expected \(4\) or \(2, 4\)"),
    (T, {"alibi_slopes": np.ones(4)}, "alibi_slopes: given float64; expected float32"),
    (V, {"o": read_only((2, 5, 4, 16))}, "o: given a read-only array; expected one that may be written"),
    (V, {"o": np.zeros((2, 5, 4, 8), f32)}, "o: given .*; expected head_dim_v = 16"),
    (V, {"o": np.broadcast_to(np.zeros(16, f32), (2, 5, 4, 16))}, "o: given a read-only array"),
    (V, {"lse": read_only((2, 4, 5))}, "lse: given a read-only array"),
    (T, {"lse": np.zeros((2, 4, 5))}, "lse: given float64; expected float32"),
    (V, {"effort": "more"}, "effort: given 'more'; expected 'loaded', 'cached', 'compile' or 'tune'"),
]


@pytest.mark.cpu
@pytest.mark.parametrize("kind, changes, message", FORWARD, ids=[f"{i}-{'-'.join(c)}" for i, (_, c, _) in
                                                                enumerate(FORWARD)])
def test_forward(kind, changes, message):
    with pytest.raises(kind, match=message) as caught:
        flashwright.attention(**arrays(**changes))
    assert isinstance(caught.value, flashwright.FlashwrightError)
    assert isinstance(caught.value, ValueError if kind is V else TypeError)


BACKWARD = [
    (V, {"gradients": ("dx",)}, r"gradients: given \('dx',\); expected some of 'dq', 'dk', 'dv'"),
    (V, {"gradients": ()}, "dq, dk, dv: given none of them"),
    (V, {"gradients": ("dq",), "dk": np.ones((2, 7, 2, 16), f32)}, "dk: given a tensor; expected None, as gradients"),
    (V, {"dq": read_only((2, 5, 4, 16))}, "dq: given a read-only array"),
    (V, {"lse": None}, "lse: given no tensor; expected that of the forward pass"),
    (V, {"d_o": np.ones((2, 5, 4, 8), f32)}, "d_o: given .*; expected head_dim_v = 16"),
    (T, {"d_o": np.ones((2, 5, 4, 16), np.float16)}, "d_o: given float16; expected float32, the type of q"),
    (T, {"d_lse": np.ones((2, 4, 5))}, "d_lse: given float64; expected float32"),
]


@pytest.mark.cpu
@pytest.mark.parametrize("kind, changes, message", BACKWARD, ids=[f"{i}-{'-'.join(c)}" for i, (_, c, _) in
                                                                 enumerate(BACKWARD)])
def test_backward(kind, changes, message):
    given = arrays(d_o=np.ones((2, 5, 4, 16), f32), o=np.ones((2, 5, 4, 16), f32), lse=np.ones((2, 4, 5), f32))
    given.update(changes)
    with pytest.raises(kind, match=message):
        flashwright.attention_backward(**given)


class Elsewhere:
    """A tensor with DLPack on a device of another type, or on a CUDA device, without its memory."""

    def __init__(self, device_type):
        self.place, self.shape = (device_type, 0), (2, 5, 4, 16)

    def __dlpack_device__(self):
        return self.place

    def __dlpack__(self, **_):
        raise BufferError("no memory")


def test_wrong_device():
    from flashwright import _native
    host = (0, (2, 5, 4, 16), (320, 64, 16, 1), "fp32", 1, 0)
    cuda = (0, (2, 5, 4, 16), (320, 64, 16, 1), "fp32", 2, 1)
    with pytest.raises(V, match="k: given memory of cuda:1; expected memory of cpu, where q lies"):
        _native.Arguments(host, cuda, host, host)
    with pytest.raises(V, match="q: given memory of DLPack device 8; expected memory of the CPU or of a CUDA device"):
        _native.Arguments((*host[:4], 8, 0), host, host, host)
    with pytest.raises(T, match="o: given None; expected the outputs"):
        flashwright.attention(Elsewhere(2), *[np.ones((2, 5, 4, 16), f32)] * 2)


def test_tuples_that_are_none():
    from flashwright import _native
    good = (0, (2, 5, 4, 16), (320, 64, 16, 1), "fp32", 1, 0)
    for bad, kind, message in [(good[:5], T, "q: given a tuple of 5 items; expected .address, shape"),
                               ((*good[:3], "fp64", 1, 0), T, "q: given dtype 'fp64' in its tuple; expected 'fp16'"),
                               (("x", *good[1:]), T, "q: given str in its tuple; expected integers"),
                               ((0, (1, 2), (1,), "fp32", 1, 0), V, "q: given shape and strides of different")]:
        with pytest.raises(kind, match=message):
            _native.Arguments(bad, good, good, good)


def test_configs():
    with pytest.raises(V, match="unknown field 'head_dims'"):
        flashwright.get_kernel({"head_dims": 64})
    with pytest.raises(T, match="config: given an object of type int"):
        flashwright.get_kernel(64)
    with pytest.raises(V, match="shape: given b0 h1/1"):
        flashwright.explain(flashwright.Config(64, target="sm_80"), (0, 1, 1, 1, 1))
    with pytest.raises(T, match=r"shape: given \(1, 2\); expected \(batch, heads_q"):
        flashwright.explain(flashwright.Config(64), (1, 2))
    with pytest.raises((flashwright.UnsupportedError, V), match="schedule: q7.kv7.*warps is 0; allowed"):
        flashwright.emit(flashwright.Config(64, target="sm_80", schedule="q7.kv7"))
    with pytest.raises(flashwright.UnavailableError, match="no device"):
        flashwright.get_kernel(flashwright.Config(64, target="sm_87"))


@pytest.mark.cpu
def test_not_cached():
    q = np.ones((1, 3, 1, 248), f32)
    with pytest.raises(flashwright.NotCachedError, match="is not loaded, and the effort allowed is 'loaded'"):
        flashwright.attention(q, q, q, effort="loaded")


def test_every_class_is_a_flashwright_error():
    classes = [kind for name, kind in vars(flashwright).items() if isinstance(kind, type) and name.endswith("Error")]
    assert len(classes) == 12
    assert all(issubclass(kind, flashwright.FlashwrightError) for kind in classes)
