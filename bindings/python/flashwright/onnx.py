"""An ONNX backend (onnx.backend.base): Attention by flashwright, every other operator by onnx's reference evaluator.

    import flashwright.onnx
    outputs = flashwright.onnx.run_model(model, inputs)  # NumPy arrays

It runs on the CPU. Attention is that of opsets 23 to 25; `supports` says what in a model is refused, and docs/
python-onnx.md has the whole list.
"""

from __future__ import annotations

from typing import Any, Iterator, Sequence

try:
    import onnx
    import onnx.backend.base
    import onnx.reference
    from onnx.reference.op_run import OpRun
except ImportError as _error:
    raise ImportError(f"flashwright.onnx needs NumPy and the package onnx, 1.18 or newer: {_error}") from _error

import numpy as np

from . import _questions
from ._errors import FlashwrightTypeError, UnsupportedError, bad_value
from ._onnx_attention import Attributes, onnx_attention, refused_attributes

VERSIONS = (23, 24, 25)  # of the operator, by the opset that brought each


class Attention(OpRun):
    """Takes the place of the reference evaluator's own."""

    op_domain = ""

    def _run(self, Q, K, V, attn_mask=None, past_key=None, past_value=None,  # type: ignore[no-untyped-def]
             nonpad_kv_seqlen=None, **attributes):
        wanted = [bool(name) for name in self.onnx_node.output]
        out = onnx_attention(Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen,
                             Attributes(**{name: attributes.get(name) for name in Attributes._fields}),
                             want_scores=wanted[3:] == [True])
        return tuple(np.empty(0, Q.dtype) if x is None else x for x in out[:len(wanted)])


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Those of the graph and of the graphs inside its nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _nodes(inner)


def supports(model: onnx.ModelProto) -> list[str]:
    """Every reason why the model is refused, as far as its graph tells before it runs; empty when there is none."""
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    nodes = [node for graph in (model.graph, *model.functions) for node in _nodes(graph)
             if node.op_type == "Attention" and node.domain in ("", "ai.onnx")]
    reasons = []
    if nodes and not _version(opset) in VERSIONS:
        reasons.append(f"opset: given {opset}; expected one with Attention of opset 23, 24 or 25")
    for node in nodes:
        known = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
                 if attribute.name in Attributes._fields}
        reasons += [f"node {node.name or node.output[0]!r}: {reason}"
                    for reason in refused_attributes(Attributes(**known))]
    return reasons


def _version(opset: int) -> int:
    try:
        return onnx.defs.get_schema("Attention", opset, "").since_version
    except onnx.defs.SchemaError:
        return 0


class FlashwrightRep(onnx.backend.base.BackendRep):
    """A model that `prepare` made ready; run it as often as wanted."""

    def __init__(self, model: onnx.ModelProto | onnx.NodeProto) -> None:
        self._evaluator = onnx.reference.ReferenceEvaluator(model, new_ops=[Attention])
        given = {tensor.name for tensor in model.graph.initializer} if isinstance(model, onnx.ModelProto) else set()
        self.input_names = [name for name in self._evaluator.input_names if name and name not in given]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs as NumPy arrays. inputs: arrays in the order of the graph's inputs, or a dict by name."""
        if not isinstance(inputs, dict):
            if isinstance(inputs, np.ndarray):
                inputs = [inputs]
            if len(inputs) > len(self.input_names):
                raise bad_value("inputs", f"{len(inputs)} arrays", f"at most {len(self.input_names)}")
            inputs = dict(zip(self.input_names, inputs))
        try:
            return tuple(self._evaluator.run(None, inputs))
        except TypeError as error:  # the evaluator hides ours behind one of its own
            if isinstance(error.__cause__, FlashwrightTypeError):
                raise error.__cause__ from None
            raise


class FlashwrightBackend(onnx.backend.base.Backend):
    """The interface of onnx.backend.base; its methods are functions of this module as well."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return cls.supports_device(device) and not supports(model)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> FlashwrightRep:
        """Makes a model ready to run. Raises UnsupportedError with every reason of `supports`."""
        _check_device(device)
        super().prepare(model, device, **kwargs)  # onnx's checker
        reasons = supports(model)
        if reasons:
            raise UnsupportedError("; ".join(reasons))
        return FlashwrightRep(model)

    @classmethod
    def run_node(cls, node: onnx.NodeProto, inputs: Sequence[Any], device: str = "CPU",
                 outputs_info: Any = None, **kwargs: Any) -> tuple[Any, ...]:
        """Runs one node; inputs: arrays for its inputs that have a name."""
        _check_device(device)
        super().run_node(node, inputs, device, outputs_info, **kwargs)  # onnx's checker
        return FlashwrightRep(node).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the models run there: "CPU", where the library has its CPU plugin."""
        return device.partition(":")[0] == "CPU" and not _questions.supports({"head_dim": 64, "target": "cpu"})


def _check_device(device: str) -> None:
    if not FlashwrightBackend.supports_device(device):
        reasons = _questions.supports({"head_dim": 64, "target": "cpu"})
        raise bad_value("device", repr(device), "'CPU'" + (f", and that is missing: {reasons[0]}" if reasons else ""))


is_compatible = FlashwrightBackend.is_compatible
prepare = FlashwrightBackend.prepare
run_model = FlashwrightBackend.run_model
run_node = FlashwrightBackend.run_node
supports_device = FlashwrightBackend.supports_device
