"""What differs between array libraries: a tensor's view, new tensors beside it, the caller's stream.

A framework is never imported here: its tensors exist only where it has been imported already.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from ._errors import bad_type, bad_value

# (address, shape, strides in elements, dtype, device_type, device_id), or an object with DLPack; what
# _native.Arguments takes.
View = Any
CPU, CUDA = 1, 2


class Adapter:
    """Anything with DLPack, in host memory. New tensors come from its array namespace (the array API standard)."""

    def view(self, name: str, tensor: Any) -> View:
        """What the extension module takes for it."""
        return tensor

    def output(self, name: str, tensor: Any) -> View:
        """The same for a tensor that will be written."""
        return self.view(name, tensor)

    def on_cuda(self, tensor: Any) -> bool:
        device = getattr(tensor, "__dlpack_device__", None)
        return device is not None and device()[0] in (CUDA, 13)

    def empty(self, like: Any, shape: tuple[int, ...], float32: bool = False) -> Any:
        """A new tensor of the element type of `like`, or of float32, beside it."""
        if not hasattr(like, "__array_namespace__"):
            raise bad_type("o", "None", f"the outputs (o and lse, or dq, dk and dv), since new ones cannot be made "
                                        f"beside a {type(like).__module__}.{type(like).__qualname__}")
        space = like.__array_namespace__()
        return space.empty(shape, dtype=space.float32 if float32 else like.dtype, device=like.device)

    def finish(self, tensor: Any) -> Any:
        """What the caller gets for a tensor of empty() when the launch is enqueued."""
        return tensor

    def stream(self, like: Any) -> int:
        """The caller's current stream."""
        if self.on_cuda(like):
            raise bad_value("stream", "None", f"the address of a stream, since the current one of "
                                              f"{type(like).__module__}.{type(like).__qualname__} is not known")
        return 0

    def workspace(self, like: Any, stream: int) -> Callable[[int], tuple[int, Any]] | None:
        """A function (bytes) -> (address, owner); None where the launch brings its own memory."""
        return None

    def from_host(self, like: Any, array: Any) -> Any:
        """A copy of a NumPy array on the GPU where `like` lies."""
        raise bad_type("like", f"a {type(like).__module__}.{type(like).__qualname__}",
                       "an array of PyTorch or CuPy, or one in host memory")

    def address(self, tensor: Any) -> int:
        """Of a tensor that from_host made."""
        raise NotImplementedError


class NumPy(Adapter):
    def view(self, name: str, tensor: Any) -> View:
        # NumPy knows bfloat16 through ml_dtypes alone, and DLPack not at all then.
        if tensor.dtype.kind == "V" and tensor.dtype.name == "bfloat16":
            address = tensor.__array_interface__["data"][0]
            return address, tensor.shape, tuple(stride // 2 for stride in tensor.strides), "bf16", CPU, 0
        return tensor

    def output(self, name: str, tensor: Any) -> View:
        if not tensor.flags.writeable:
            raise bad_value(name, "a read-only array", "one that may be written")
        return self.view(name, tensor)

    def on_cuda(self, tensor: Any) -> bool:
        return False

    def empty(self, like: Any, shape: tuple[int, ...], float32: bool = False) -> Any:
        numpy = sys.modules["numpy"]
        return numpy.empty(shape, numpy.float32 if float32 else like.dtype)

    def stream(self, like: Any) -> int:
        return 0


def aligned(address: int, owner: Any) -> tuple[int, Any]:
    """A workspace in memory that has 255 bytes more than it needs."""
    return (address + 255) // 256 * 256, owner


class Torch(Adapter):
    def __init__(self) -> None:
        self.torch = torch = sys.modules["torch"]
        self.types = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}

    def view(self, name: str, tensor: Any) -> View:
        if tensor.requires_grad and self.torch.is_grad_enabled():
            raise bad_value(name, "a tensor that requires a gradient",
                            "one that does not, or a call under torch.no_grad(): this function is not differentiated")
        return self.describe(name, tensor)

    def describe(self, name: str, tensor: Any) -> View:
        """Its view, whether it requires a gradient or not."""
        try:
            dtype = self.types[tensor.dtype]
        except KeyError:
            raise bad_type(name, tensor.dtype, "torch.float16, torch.bfloat16 or torch.float32") from None
        if tensor.is_cuda:
            return tensor.data_ptr(), tensor.shape, tensor.stride(), dtype, CUDA, tensor.get_device()
        if tensor.device.type != "cpu":
            raise bad_value(name, f"memory of {tensor.device}", "memory of the CPU or of a CUDA device")
        return tensor.data_ptr(), tensor.shape, tensor.stride(), dtype, CPU, 0

    def on_cuda(self, tensor: Any) -> bool:
        return tensor.is_cuda

    def empty(self, like: Any, shape: tuple[int, ...], float32: bool = False) -> Any:
        torch = self.torch
        return torch.empty(shape, dtype=torch.float32 if float32 else like.dtype, device=like.device)

    def stream(self, like: Any) -> int:
        return self.torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0

    def workspace(self, like: Any, stream: int) -> Callable[[int], tuple[int, Any]] | None:
        if not like.is_cuda:
            return None
        torch = self.torch

        def allocate(size: int) -> tuple[int, Any]:
            # On the launch's stream, so that the caching allocator gives the memory to nobody who would write it
            # before the kernel is done.
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, like.device)):
                memory = torch.empty(size + 255, dtype=torch.uint8, device=like.device)
            return aligned(memory.data_ptr(), memory)
        return allocate

    def address(self, tensor: Any) -> int:
        return tensor.data_ptr()

    def from_host(self, like: Any, array: Any) -> Any:
        return self.torch.from_numpy(array).to(like.device)


class CuPy(Adapter):
    def __init__(self) -> None:
        self.cupy = sys.modules["cupy"]
        self.types = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

    def view(self, name: str, tensor: Any) -> View:
        dtype = self.types.get(tensor.dtype.name)
        if dtype is None:
            raise bad_type(name, tensor.dtype.name, "float16, bfloat16 or float32")
        size = tensor.dtype.itemsize
        strides = tuple(stride // size for stride in tensor.strides)
        return tensor.data.ptr, tensor.shape, strides, dtype, CUDA, tensor.device.id

    def on_cuda(self, tensor: Any) -> bool:
        return True

    def empty(self, like: Any, shape: tuple[int, ...], float32: bool = False) -> Any:
        with like.device:
            return self.cupy.empty(shape, self.cupy.float32 if float32 else like.dtype)

    def stream(self, like: Any) -> int:
        return self.cupy.cuda.get_current_stream(like.device.id).ptr

    def workspace(self, like: Any, stream: int) -> Callable[[int], tuple[int, Any]] | None:
        cupy = self.cupy

        def allocate(size: int) -> tuple[int, Any]:
            with like.device, cupy.cuda.ExternalStream(stream, like.device.id):
                memory = cupy.cuda.alloc(size + 255)
            return aligned(memory.ptr, memory)
        return allocate

    def address(self, tensor: Any) -> int:
        return tensor.data.ptr

    def from_host(self, like: Any, array: Any) -> Any:
        with like.device:
            return self.cupy.asarray(array)


class Jax(Adapter):
    """JAX arrays in host memory. They cannot be written: outputs are NumPy's until they are handed out."""

    def view(self, name: str, tensor: Any) -> View:
        if self.on_cuda(tensor):
            raise bad_value(name, "a JAX array in device memory", "one in host memory: JAX has streams of its own")
        return tensor.block_until_ready()

    def output(self, name: str, tensor: Any) -> View:
        raise bad_value(name, "a JAX array, which cannot be written", "None, or an array that can")

    def empty(self, like: Any, shape: tuple[int, ...], float32: bool = False) -> Any:
        import numpy
        return numpy.empty(shape, numpy.float32 if float32 else like.dtype)

    def finish(self, tensor: Any) -> Any:
        return sys.modules["jax"].numpy.asarray(tensor)

    def stream(self, like: Any) -> int:
        return 0


_MAKERS: dict[str, type[Adapter]] = {"numpy": NumPy, "torch": Torch, "cupy": CuPy, "jaxlib": Jax}
_adapters: dict[type, Adapter] = {}
_by_maker: dict[type[Adapter], Adapter] = {}


def _find(name: str, kind: type) -> Adapter:
    for base in kind.__mro__:  # subclasses: torch.nn.Parameter, numpy.matrix
        maker = _MAKERS.get(base.__module__.partition(".")[0])
        if maker is not None:
            break
    else:
        if not hasattr(kind, "__dlpack__"):
            raise bad_type(name, f"an object of type {kind.__name__}",
                           "a tensor: an array of NumPy, PyTorch, CuPy, JAX, or anything with __dlpack__")
        maker = Adapter
    if maker not in _by_maker:
        _by_maker[maker] = maker()
    _adapters[kind] = _by_maker[maker]
    return _by_maker[maker]


def adapter_of(name: str, tensor: Any) -> Adapter:
    """The adapter for a tensor's type; FlashwrightTypeError names the argument when it is none."""
    kind = type(tensor)
    return _adapters.get(kind) or _find(name, kind)


def view(name: str, tensor: Any) -> View:
    return None if tensor is None else adapter_of(name, tensor).view(name, tensor)


def output(name: str, tensor: Any) -> View:
    return None if tensor is None else adapter_of(name, tensor).output(name, tensor)
