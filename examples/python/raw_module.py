"""A kernel in other hands: its cubin in cupy.RawModule, launched by the rules of describe(), without this library.

It runs on a GPU with CuPy. Elsewhere it fills the parameter block of a CPU kernel, and looks for the entry of a cubin.
"""

import os
import tempfile

try:
    import cupy
    cupy.cuda.runtime.getDeviceCount()
    # The family sm90 takes tensor maps for TMA, which would need an encoder; this one has plain parameters.
    os.environ["FLASHWRIGHT_FAMILY"] = "sm80"
except Exception as error:  # no CuPy, no driver, no device: CuPy has a class for each
    cupy, reason = None, f"{type(error).__name__}: {error}"

import flashwright
import numpy as np

TYPES = {"pointer": np.uint64, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f32": np.float32}
BATCH, SEQ, HEADS, DIM = 2, 1000, 8, 64
SHAPE = flashwright.Shape(batch=BATCH, heads_q=HEADS, heads_kv=HEADS, seq_q=SEQ, seq_kv=SEQ)


def parameters(about, pointers):
    """The parameter block: dense tensors (batch, seq, heads, dim), no LSE."""
    values = {**SHAPE._asdict(), **pointers, "group": 1, "q_position": 0, "aligned": 1, "lse": 0,
              "lse_batch_stride": 0, "lse_head_stride": 0, "scale_log2": np.log2(np.e) / np.sqrt(DIM)}
    for name in "qkvo":
        values.update({f"{name}_batch_stride": SEQ * HEADS * DIM, f"{name}_row_stride": HEADS * DIM,
                       f"{name}_head_stride": DIM})
    fields = about["params"]
    layout = np.dtype({"names": [field["name"] for field in fields], "offsets": [field["offset"] for field in fields],
                       "formats": [TYPES[field["type"]] for field in fields], "itemsize": about["param_bytes"]})
    return np.array([tuple(values[name] for name in layout.names)], layout)


def blocks_of(entry):
    """How many blocks: the rule is an expression over the sizes."""
    names = {"ceil_div": lambda a, b: -(-a // b), "floor_div": lambda a, b: a // b, "min": min, "max": max}
    return eval(entry["grid"], {"__builtins__": {}}, {**names, **SHAPE._asdict()})


def without_gpu():
    if not flashwright.supports({"head_dim": DIM, "target": "cpu"}):
        about = flashwright.get_kernel({"head_dim": DIM, "mask": "causal", "dtype": "fp32", "target": "cpu"}).describe()
        block, entry = parameters(about, dict.fromkeys("qkvo", 64)), about["entries"][0]
        print(f"{entry['name']}: {blocks_of(entry)} tasks = {entry['grid']}; {block.nbytes} bytes of parameters")
    try:
        report, cubin = flashwright.compile(flashwright.Config(DIM, dtype="fp16", mask="causal", target="sm_80"), SHAPE)
        assert b".text.fw_forward" in cubin
        print(f"fw_forward: {report['bytes']} bytes of {report['kind']} by {report['toolchain']}")
    except flashwright.UnavailableError as error:
        print(f"no cubin: {error}")
    print(f"skipped: python_raw_module: {reason}")


def with_gpu():
    kernel = flashwright.get_kernel(flashwright.Config(DIM, dtype="fp16", mask="causal", target="cuda"), SHAPE)
    about = kernel.describe()
    q, k, v = (cupy.random.standard_normal((BATCH, SEQ, HEADS, DIM)).astype(cupy.float16) for _ in range(3))
    o = cupy.empty_like(q)
    block = parameters(about, {"q": q.data.ptr, "k": k.data.ptr, "v": v.data.ptr, "o": o.data.ptr})
    with tempfile.NamedTemporaryFile(suffix="." + about["kind"]) as file:
        file.write(kernel.binary)
        file.flush()
        module = cupy.RawModule(path=file.name)
        module.compile()  # which loads the file, and else happens later
    for entry in about["entries"]:
        function = module.get_function(entry["name"])
        function.max_dynamic_shared_size_bytes = entry["smem_bytes"]
        function((blocks_of(entry),), (entry["threads"],), (block,), shared_mem=entry["smem_bytes"])
        print(f"{entry['name']}: {blocks_of(entry)} blocks of {entry['threads']} threads")
    assert (o == flashwright.attention(q, k, v, "causal")).all()
    print("the same values as through flashwright.attention")


if __name__ == "__main__":
    without_gpu() if cupy is None else with_gpu()
