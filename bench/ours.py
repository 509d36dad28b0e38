"""flashwright's side of a comparison: Configs of the peers' shapes, tuning, and a check of the results."""

import json
import math
import time

import library

NAME = "flashwright"
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def config_of(shape):
    config = {"dtype": SHORT[shape.dtype], "head_dim": shape.dim_qk, "mask": "causal" if shape.causal else "none"}
    if shape.dim_v != shape.dim_qk:
        config["head_dim_v"] = shape.dim_v
    if shape.dropout:
        config["dropout"] = shape.dropout
    return config


def sizes_of(shape):
    return shape.batch, shape.heads_q, shape.heads_kv, shape.seq_q, shape.seq_kv


def tune_all(lib, shapes, budget_s, config=config_of):
    """One search for each slot; shapes that share a slot are tuned once."""
    done = set()
    for shape in shapes:
        slot = lib.text("flashwright_explain", json.dumps(config(shape)).encode(),
                        library.ctypes.byref(library.Shape(*sizes_of(shape))))["slot"]
        if slot in done:
            continue
        done.add(slot)
        start = time.time()
        report = lib.tune(config(shape), sizes_of(shape), budget_s)
        decision = report["decision"]
        print(f"tuned {slot}: {decision['schedule']}, gain {100 * decision['gain']:.1f} % "
              f"[{100 * decision['gain_low']:.1f}, {100 * decision['gain_high']:.1f}], "
              f"{len(decision['tied'])} tied, {decision['measured']} of {report['legal']} measured, "
              f"noise {100 * decision['noise']:.2f} %, {time.time() - start:.0f} s", flush=True)


def bind_gradients(torch, lib, shape, inputs, kernel, forward):
    """A launch of the backward kernel, once what `forward` (a Config) makes is there, after a check against float64
    where nothing is dropped. Inputs as (batch, heads, seq, dim)."""
    q, k, v = (tensor.transpose(1, 2) for tensor in inputs)
    out = torch.empty((shape.batch, shape.seq_q, shape.heads_q, shape.dim_v), dtype=q.dtype, device=q.device)
    lse = torch.empty(shape.batch, shape.heads_q, shape.seq_q, device=q.device)
    lib.kernel(forward, sizes_of(shape)).bind(q, k, v, out, lse, seed=1)()
    d_o = torch.randn_like(out)
    found = [torch.full_like(tensor, float("nan")) for tensor in (q, k, v)]
    launch = kernel.bind(q, k, v, out, lse, seed=1, d_o=d_o, dq=found[0], dk=found[1], dv=found[2])
    launch()
    if not all(torch.isfinite(tensor).all() for tensor in found):
        raise RuntimeError(f"a gradient of {shape} is not finite")
    if not shape.dropout and shape.heads_q == shape.heads_kv:
        with torch.enable_grad():
            check_gradients(torch, shape, inputs, d_o.transpose(1, 2), [tensor.transpose(1, 2) for tensor in found])
    return launch, d_o


def rounding(dtype, largest):
    """What any result may be off: a unit in the last place of its largest number, or 1e-5 of it in fp32."""
    mantissa = {"torch.bfloat16": 7, "torch.float16": 10}.get(str(dtype))
    return 1e-5 * (1 + largest) if mantissa is None else 2.0 ** (math.floor(math.log2(largest + 0.3)) - mantissa)


def check_gradients(torch, shape, inputs, d_o, found):
    """Compares dq, dk, dv of the first batch entry and head with float64; all as (batch, heads, seq, dim)."""
    def gradients(dtype):
        q, k, v = (t[:1, :1].detach().to(dtype).requires_grad_(True) for t in inputs)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal)
        return torch.autograd.grad(out, (q, k, v), d_o[:1, :1].to(dtype))

    for name, exact, plain, got in zip(("dq", "dk", "dv"), gradients(torch.float64), gradients(inputs[0].dtype), found):
        check_close(f"{name} of {shape}", exact, plain, got[:1, :1], 3)


def check_close(name, exact, plain, got, factor):
    """Compares with float64, given the same in the precision of the result, whose error counts `factor` times.
    Returns the error."""
    allowed = factor * (plain.double() - exact).abs().max().item() + rounding(got.dtype, exact.abs().max().item())
    error = (got.double() - exact).abs().max().item()
    if not error <= allowed:
        raise RuntimeError(f"wrong {name}: error {error:.3g}, allowed {allowed:.3g}")
    return error


def check_rows(torch, shape, q, k, v, out, rows=64):
    """Compares some query rows of every head with float64, by the tolerance of an unfused computation."""
    step = max(1, shape.seq_q // rows)
    index = torch.arange(step - 1, shape.seq_q, step, device=q.device)
    group = shape.heads_q // shape.heads_kv
    for batch in range(min(shape.batch, 2)):
        queries = q[batch, index].transpose(0, 1)
        keys, values = (t[batch].transpose(0, 1).repeat_interleave(group, 0) for t in (k, v))

        def attend(dtype):
            scores = (queries.to(dtype) @ keys.to(dtype).transpose(1, 2)) * shape.dim_qk**-0.5
            if shape.causal:
                positions = index + shape.seq_kv - shape.seq_q
                hidden = torch.arange(shape.seq_kv, device=q.device)[None] > positions[:, None]
                scores = scores.masked_fill(hidden, -math.inf)
            return (torch.softmax(scores, -1) @ values.to(dtype)).transpose(0, 1).double()

        exact, got = attend(torch.float64), out[batch, index].double()
        largest = exact.abs().max().item()
        allowed = rounding(out.dtype, largest)
        if shape.dtype != "float32":
            allowed += 2 * (attend(q.dtype) - exact).abs().max().item()
        error = (got - exact).abs().max().item()
        if not error <= allowed:
            raise RuntimeError(f"wrong result for {shape}: error {error:.3g}, allowed {allowed:.3g}")
