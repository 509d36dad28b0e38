"""libflashwright through ctypes, on PyTorch tensors: just enough for tests and benchmarks on a GPU."""

import ctypes
import json
import os
import pathlib

LOADED, CACHED, COMPILE, TUNE = range(4)


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("type_code", ctypes.c_uint8), ("type_bits", ctypes.c_uint8),
                ("type_lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Blocks(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("seq_q", ctypes.c_int64), ("seq_kv", ctypes.c_int64),
                ("block_q", ctypes.c_int64), ("block_kv", ctypes.c_int64), ("batch", ctypes.c_int64),
                ("heads", ctypes.c_int64), ("full_offsets", ctypes.c_void_p), ("full_columns", ctypes.c_void_p),
                ("partial_offsets", ctypes.c_void_p), ("partial_columns", ctypes.c_void_p),
                ("partial_bits", ctypes.c_void_p), ("full_query_offsets", ctypes.c_void_p),
                ("full_query_rows", ctypes.c_void_p), ("partial_query_offsets", ctypes.c_void_p),
                ("partial_query_rows", ctypes.c_void_p), ("partial_query_places", ctypes.c_void_p)]


class Arguments(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.POINTER(Tensor)) for name in ("q", "k", "v", "o", "lse")] + [
        ("blocks", ctypes.POINTER(Blocks)), ("seed", ctypes.c_uint64), ("offset", ctypes.c_uint64),
        ("rng_state", ctypes.c_void_p), ("q_position", ctypes.c_int64), ("has_q_position", ctypes.c_int32),
        ("reserved", ctypes.c_int32)] + [
        (name, ctypes.POINTER(Tensor)) for name in ("alibi_slopes", "d_o", "d_lse", "dq", "dk", "dv")]


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")]


Progress = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)


class Failure(Exception):
    def __init__(self, status, message, detail):
        super().__init__(message + ("\n" + detail if detail else ""))
        self.status = status


def find_library():
    named = os.environ.get("LIBFLASHWRIGHT")
    if named:
        return named
    root = pathlib.Path(__file__).resolve().parents[1]
    for folder in ("build", "build-release"):
        path = root / folder / "lib" / "libflashwright.so"
        if path.exists():
            return str(path)
    raise SystemExit("libflashwright.so not found: build it, or name it in LIBFLASHWRIGHT")


class Library:
    def __init__(self, path=None, options=None):
        """With options (the JSON of flashwright_engine_create) an engine of its own, else the process's."""
        self.c = ctypes.CDLL(path or find_library())
        self.engine = ctypes.c_void_p()
        for name in ("flashwright_last_error", "flashwright_last_error_detail", "flashwright_kernel_source"):
            getattr(self.c, name).restype = ctypes.c_char_p
        if options is not None:
            self.check(self.c.flashwright_engine_create(json.dumps(options).encode(), ctypes.byref(self.engine)))

    def check(self, status):
        if status:
            raise Failure(status, self.c.flashwright_last_error().decode(),
                          self.c.flashwright_last_error_detail().decode())

    def text(self, function, *arguments):
        """Calls a function whose last argument receives a JSON text."""
        out = ctypes.c_char_p()
        self.check(getattr(self.c, function)(self.engine, *arguments, ctypes.byref(out)))
        value = json.loads(out.value)
        self.c.flashwright_free(out)
        return value

    def supports(self, config):
        return self.text("flashwright_supports", json.dumps(config).encode())

    def kernel(self, config, shape=None, effort=COMPILE):
        handle = ctypes.c_void_p()
        hint = ctypes.byref(Shape(*shape)) if shape else None
        self.check(self.c.flashwright_get_kernel(self.engine, json.dumps(config).encode(), hint, effort,
                                                 ctypes.byref(handle)))
        return Kernel(self, handle)

    def tune(self, config, shape, budget_s=60, device=None, on_event=None):
        options = {"budget_s": budget_s}
        if device:
            options["device"] = device
        call = Progress(lambda user, done, total, event: on_event(done, total, json.loads(event)) or 0
                        if on_event else 0)
        return self.text("flashwright_tune", json.dumps(config).encode(), ctypes.byref(Shape(*shape)),
                         json.dumps(options).encode(), call, None)


def view(tensor):
    """A tensor of PyTorch as the library sees it; keeps nothing alive."""
    codes = {"torch.float16": (2, 16), "torch.bfloat16": (4, 16), "torch.float32": (2, 32)}
    code, bits = codes[str(tensor.dtype)]
    extents = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
    strides = (ctypes.c_int64 * tensor.dim())(*tensor.stride())
    return Tensor(tensor.data_ptr(), 2 if tensor.is_cuda else 1, tensor.device.index or 0, tensor.dim(), code, bits,
                  1, extents, strides, 0)


class Kernel:
    def __init__(self, library, handle):
        self.library, self.handle = library, handle

    def __del__(self):
        self.library.c.flashwright_kernel_release(self.handle)

    def describe(self):
        out = ctypes.c_char_p()
        self.library.check(self.library.c.flashwright_kernel_describe(self.handle, ctypes.byref(out)))
        value = json.loads(out.value)
        self.library.c.flashwright_free(out)
        return value

    def bind(self, q, k, v, o, lse=None, blocks=None, seed=0, offset=0, rng_state=None, q_position=None, stream=None,
             alibi_slopes=None, **gradients):
        """A function that launches on tensors in (batch, seq, heads, dim) order, on the current stream.

        With "alibi" in the Config: alibi_slopes is float32 (heads_q) or (batch, heads_q). Backward: o and lse are
        those of the forward pass, gradients are d_o and those of dq, dk, dv that are wanted."""
        import torch
        given = {"q": q, "k": k, "v": v, "o": o, "lse": lse, **gradients}
        tensors = {name: view(tensor) for name, tensor in given.items() if tensor is not None}
        args = Arguments(size=ctypes.sizeof(Arguments), seed=seed, offset=offset)
        for name, tensor in tensors.items():
            setattr(args, name, ctypes.pointer(tensor))
        slopes = view(alibi_slopes) if alibi_slopes is not None else None
        if slopes is not None:
            args.alibi_slopes = ctypes.pointer(slopes)
        if blocks is not None:
            args.blocks = ctypes.pointer(blocks)
        if rng_state is not None:
            args.rng_state = rng_state.data_ptr()
        if q_position is not None:
            args.q_position, args.has_q_position = q_position, 1
        bytes_ = ctypes.c_size_t()
        self.library.check(self.library.c.flashwright_kernel_workspace_bytes(self.handle, ctypes.byref(args),
                                                                            ctypes.byref(bytes_)))
        workspace = torch.empty(bytes_.value + 255, dtype=torch.uint8, device=q.device) if bytes_.value else None
        aligned = (workspace.data_ptr() + 255) // 256 * 256 if workspace is not None else None
        address = ctypes.c_void_p(aligned)

        def launch(keep=(given, blocks, rng_state, workspace, tensors, alibi_slopes, slopes)):
            on = stream if stream is not None else (torch.cuda.current_stream().cuda_stream if q.is_cuda else None)
            self.library.check(self.library.c.flashwright_kernel_launch(self.handle, ctypes.byref(args), address,
                                                                        ctypes.c_void_p(on)))

        return launch
