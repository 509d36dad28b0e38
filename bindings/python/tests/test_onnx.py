"""flashwright.onnx: the node tests of the onnx package, and what these leave out."""

import pathlib
import re

import flashwright
import numpy as np
import pytest

pytest.importorskip("onnx")
import onnx  # noqa: E402
import onnx.backend.test  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import flashwright.onnx  # noqa: E402

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "python-onnx.md"
rng = np.random.default_rng(5)


def node_tests():
    """name -> function of every node test of Attention; *_expanded have other operators in its place."""
    runner = onnx.backend.test.BackendTest(flashwright.onnx.FlashwrightBackend, __name__)
    runner.include(r"test_attention_.*_cpu")
    case = runner.test_cases["OnnxBackendNodeModelTest"]
    names = [name for name in dir(case) if re.fullmatch(r"test_attention_.*_cpu", name) and "_expanded" not in name]
    return {name.removesuffix("_cpu"): getattr(case(name), name) for name in names}


def test_node_tests_of_onnx():
    """All pass but those that the page names, each with the reason that the page gives."""
    refused = dict(re.findall(r"^\| `(test_attention_\w+)` \| (.*?) \|$", PAGE.read_text(), re.MULTILINE))
    ran = set()
    for name, run in node_tests().items():
        if name in refused:
            with pytest.raises(flashwright.UnsupportedError) as error:
                run()
            assert refused[name] in error.value.message, name
        else:
            run()
        ran.add(name)
    assert len(ran) > 60 and set(refused) <= ran


def attention(inputs, opset=25, outputs=1, names=("Q", "K", "V", "attn_mask"), **attributes):
    """A model of one node for these inputs, one for each name that is not empty."""
    node = helper.make_node("Attention", list(names[:len(inputs)] if "" not in names else names),
                            [f"out{i}" for i in range(outputs)], **attributes)
    given = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
             for name, x in zip([name for name in names if name], inputs)]
    results = [helper.make_tensor_value_info(name, given[0].type.tensor_type.elem_type, [None] * inputs[0].ndim)
               for name in node.output]
    graph = helper.make_graph([node], "attention", given, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def draw(*shape):
    return rng.standard_normal(shape, dtype=np.float32)


def check(inputs, bound=2e-5, **options):
    """Against the reference evaluator of onnx."""
    model = attention(inputs, **options)
    got = flashwright.onnx.run_model(model, inputs)
    names = [tensor.name for tensor in model.graph.input]
    want = ReferenceEvaluator(model).run(None, dict(zip(names, inputs)))
    assert len(got) == len(want)
    for mine, other in zip(got, want):
        assert mine.dtype == other.dtype and mine.shape == other.shape
        np.testing.assert_allclose(mine, other, atol=bound, rtol=bound)
    return got


def padding(batch, seq_kv, low):
    mask = np.zeros((batch, 1, 1, seq_kv), np.float32)
    mask[0, ..., seq_kv // 2:] = low
    return mask


class TestLargerShapes:
    """Several blocks in each direction, head dims that kernels have and have not."""

    @pytest.mark.parametrize("attributes", [
        {}, {"is_causal": 1}, {"is_causal": 1, "left_window_size": 30}, {"softcap": 1.5, "is_causal": 1},
        {"left_window_size": 20, "right_window_size": 9}, {"scale": 0.3}], ids=str)
    def test_masks_of_the_node(self, attributes):
        check([draw(2, 6, 130, 20), draw(2, 3, 201, 20), draw(2, 3, 201, 28)], **attributes)

    def test_past(self):
        check([draw(1, 4, 70, 16), draw(1, 2, 70, 16), draw(1, 2, 70, 16), draw(1, 2, 90, 16), draw(1, 2, 90, 16)],
              opset=24, outputs=3, names=("Q", "K", "V", "", "past_key", "past_value"), is_causal=1)

    @pytest.mark.parametrize("shape", [(130, 201), (1, 201), (201,), (3, 1, 130, 150), (6, 130, 201), (3, 6, 130, 201)])
    def test_masks_of_bools(self, shape):
        tensors, mask = [draw(3, 6, 130, 16), draw(3, 2, 201, 16), draw(3, 2, 201, 16)], rng.random(shape) < 0.7
        whole = mask if mask.shape[-2:-1] == (130,) else np.broadcast_to(mask, (130, 201))
        want, = check([*tensors, whole], is_causal=1)  # the reference evaluator needs a row for each query here
        got, = flashwright.onnx.run_model(attention([*tensors, mask], is_causal=1), [*tensors, mask])
        assert (got == want).all()

    @pytest.mark.parametrize("low", [-np.inf, np.finfo(np.float32).min, -1e4])
    def test_padding_as_numbers(self, low):
        mask = np.zeros((2, 1, 1, 300), np.float32)
        mask[0, ..., 150:] = low
        check([draw(2, 6, 300, 64), draw(2, 2, 300, 64), draw(2, 2, 300, 64), mask])

    @pytest.mark.parametrize("rows, columns", [(40, 201), (201, 40), (1, 400)])
    def test_numbers_to_add(self, rows, columns):
        mask = 3 * draw(2, 6, rows, columns)
        mask[:, :, :, 5] = -np.inf
        check([draw(2, 6, rows, 64), draw(2, 2, columns, 64), draw(2, 2, columns, 24), mask], 5e-5)

    def test_a_row_of_low_numbers_alone(self):
        """The numbers that stand for -inf in many models hide nothing where they are everywhere."""
        v = draw(1, 1, 9, 8)
        inputs = [draw(1, 1, 4, 8), draw(1, 1, 9, 8), v, np.full((1, 9), np.finfo(np.float32).min, np.float32)]
        got, = flashwright.onnx.run_model(attention(inputs), inputs)
        np.testing.assert_allclose(got, np.broadcast_to(v.mean(2, keepdims=True), got.shape), atol=1e-6)

    def test_lengths_of_entries(self):
        options = {"names": ("Q", "K", "V", "", "", "", "nonpad_kv_seqlen"), "is_causal": 1, "left_window_size": 40}
        k, v = draw(3, 2, 150, 16), draw(3, 2, 150, 16)
        inputs = [draw(3, 4, 70, 16), k, v, np.array([150, 80, 3])]
        want, = check(inputs, **options)
        k[2, :, 3:], v[2, :, 3:] = np.nan, np.inf  # never read
        got, = flashwright.onnx.run_model(attention(inputs, **options), inputs)
        assert (got == want).all()


def transformer():
    """Token embedding, one block with its attention inside an If, and the logits."""
    width, heads, tokens = 32, 4, 50
    weights = {"table": draw(tokens, width), "gain": np.ones(width, np.float32), "bias": np.zeros(width, np.float32),
               **{name: draw(width, width) / 6 for name in ("wq", "wk", "wv", "wo", "w1", "w2")}}
    inner = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v"], ["a"], q_num_heads=heads, kv_num_heads=heads, is_causal=1)],
        "attend", [], [helper.make_tensor_value_info("a", TensorProto.FLOAT, [None] * 3)])
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]),
             helper.make_node("LayerNormalization", ["x", "gain", "bias"], ["n"]),
             *[helper.make_node("MatMul", ["n", f"w{name}"], [name]) for name in "qkv"],
             helper.make_node("If", ["attend"], ["seen"], then_branch=inner, else_branch=helper.make_graph(
                 [helper.make_node("Identity", ["v"], ["b"])], "skip", [],
                 [helper.make_tensor_value_info("b", TensorProto.FLOAT, [None] * 3)])),
             helper.make_node("MatMul", ["seen", "wo"], ["p"]), helper.make_node("Add", ["x", "p"], ["y"]),
             helper.make_node("MatMul", ["y", "w1"], ["h"]), helper.make_node("Gelu", ["h"], ["g"]),
             helper.make_node("MatMul", ["g", "w2"], ["m"]), helper.make_node("Add", ["y", "m"], ["z"]),
             helper.make_node("Transpose", ["table"], ["columns"]),
             helper.make_node("MatMul", ["z", "columns"], ["logits"])]
    graph = helper.make_graph(
        nodes, "transformer",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"]),
         helper.make_tensor_value_info("attend", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None] * 3)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def test_a_small_transformer(monkeypatch):
    calls = []
    attend = flashwright._onnx_attention.attention
    monkeypatch.setattr(flashwright._onnx_attention, "attention",
                        lambda *tensors, **options: calls.append(1) or attend(*tensors, **options))
    model = transformer()
    prepared = flashwright.onnx.prepare(model)
    for seq in (3, 70):
        feeds = {"ids": rng.integers(0, 50, (2, seq)), "attend": np.array(True)}
        got, = prepared.run(feeds)
        want, = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_allclose(got, want, atol=2e-4, rtol=2e-4)
    assert len(calls) == 2
    prepared.run([feeds["ids"], np.array(False)])
    assert len(calls) == 2


def test_run_node_and_devices():
    q, k, v = draw(1, 2, 5, 8), draw(1, 2, 7, 8), draw(1, 2, 7, 8)
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"])
    got, = flashwright.onnx.run_node(node, [q, k, v], opset_version=23)
    want = flashwright.attention(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)))
    assert (got.transpose(0, 2, 1, 3) == want).all()
    assert flashwright.onnx.supports_device("CPU") and not flashwright.onnx.supports_device("CUDA")
    with pytest.raises(flashwright.FlashwrightValueError, match="device: given 'CUDA'; expected 'CPU'"):
        flashwright.onnx.prepare(attention([q, k, v]), "CUDA")


class TestRefused:
    def run(self, match, inputs, kind=flashwright.UnsupportedError, **options):
        with pytest.raises(kind, match=match):
            flashwright.onnx.run_model(attention(inputs, **options), inputs)

    def test_double(self):
        tensors = [draw(1, 1, 4, 8)] * 3
        model = attention(tensors, softmax_precision=TensorProto.DOUBLE)
        assert "given DOUBLE" in flashwright.onnx.supports(model)[0] and not flashwright.onnx.is_compatible(model)
        assert flashwright.onnx.supports(attention(tensors)) == []
        self.run("softmax_precision: given DOUBLE", tensors, softmax_precision=TensorProto.DOUBLE)
        self.run("Q: given float64; expected float16", [x.astype(np.float64) for x in tensors], TypeError)

    def test_masks(self):
        tensors = [draw(1, 2, 300, 64)] * 3
        self.run("differ in 300 queries and 300 keys; expected bools, 0 or -inf, or at most 192",
                 [*tensors, draw(300, 300)])
        self.run("given numbers to add and softcap", [*tensors, draw(1, 300)], softcap=2.0)
        self.run("attn_mask: given NaN", [*tensors, np.full((1, 300), np.nan, np.float32)], ValueError)
        self.run(r"attn_mask: given shape \(7, 300\); expected one that broadcasts to \(1, 2, 300, 300\)",
                 [*tensors, draw(7, 300)], ValueError)

    def test_shapes(self):
        self.run("q_num_heads, kv_num_heads: given", [draw(1, 4, 16)] * 3, ValueError)
        tensors = [draw(1, 1, 4, 8)] * 3
        self.run("nonpad_kv_seqlen: given .9.; expected 1 numbers from 0 to 4", [*tensors, np.array([9])], ValueError,
                 names=("Q", "K", "V", "", "", "", "nonpad_kv_seqlen"))
        with pytest.raises(ValueError, match="inputs: given 4 arrays; expected at most 3"):
            flashwright.onnx.prepare(attention(tensors)).run([*tensors, tensors[0]])

    def test_scores_of_many_keys(self):
        self.run("qk_matmul_output: given 67108864 scores", [np.zeros((1, 1, 8192, 8), np.float32)] * 3, opset=23,
                 outputs=4)
