"""Configs and shapes as values, and their texts for the library."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence, Union

from ._errors import bad_type, bad_value

EFFORTS = {"loaded": 0, "cached": 1, "compile": 2, "tune": 3}


class Config(NamedTuple):
    """One attention problem, as in docs/configuration.md. Only head_dim has no default.

    direction: "forward" or "backward". dtype: "fp16", "bf16" or "fp32". head_dim: of queries and keys, 8 to 256 in
    steps of 8; head_dim_v: of values and outputs, 0 for head_dim. mask: "none", "causal", "window:LEFT,RIGHT" or
    "blocks". dropout: probability. softmax_scale: None for 1 / sqrt(head_dim). target: "cpu", "cuda", "sm_90a", ...,
    "" for the best device present. schedule: pins the knobs, "" lets the library choose.
    """

    head_dim: int
    dtype: str = "bf16"
    direction: str = "forward"
    head_dim_v: int = 0
    mask: str = "none"
    dropout: float = 0.0
    softmax_scale: float | None = None
    softcap: float | None = None
    alibi: bool = False
    deterministic: bool = False
    target: str = ""
    schedule: str = ""


class Shape(NamedTuple):
    """The sizes of a call, which a kernel does not depend on but the choice of the fastest one does."""

    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int


ConfigLike = Union[Config, Mapping[str, Any], str]


def json_text(name: str, fields: Mapping[str, Any]) -> str:
    import json  # an import of flashwright does without
    try:
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))
    except TypeError as error:
        raise bad_type(name, f"{fields!r} ({error})", "fields that are text, numbers or bools") from None


def config_text(config: ConfigLike) -> str:
    """The JSON of a Config, of a mapping with its fields, or of a text that is JSON already."""
    if isinstance(config, str):
        return config
    fields: Mapping[str, Any]
    if isinstance(config, Config):
        # Equal Configs give equal texts: defaults are left out, as the C++ layer does.
        fields = {name: value for name, value in config._asdict().items()
                  if name == "head_dim" or value != Config._field_defaults[name]}
    elif isinstance(config, Mapping):
        fields = config
    else:
        raise bad_type("config", f"an object of type {type(config).__name__}",
                       "a flashwright.Config, a mapping with its fields, or JSON text")
    return json_text("config", dict(fields))


def shape_tuple(shape: Sequence[int] | None) -> tuple[int, int, int, int, int] | None:
    if shape is None:
        return None
    try:
        batch, heads_q, heads_kv, seq_q, seq_kv = (int(extent) for extent in shape)
    except (TypeError, ValueError):
        raise bad_type("shape", repr(shape), "(batch, heads_q, heads_kv, seq_q, seq_kv)") from None
    return batch, heads_q, heads_kv, seq_q, seq_kv


def effort_number(effort: str) -> int:
    try:
        return EFFORTS[effort]
    except (KeyError, TypeError):
        raise bad_value("effort", repr(effort), "'loaded', 'cached', 'compile' or 'tune'") from None
