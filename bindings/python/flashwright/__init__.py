"""flashwright: exact attention kernels, generated, compiled, tuned and cached at run time.

    import flashwright
    o = flashwright.attention(q, k, v, mask="causal")  # (batch, seq, heads, dim), of NumPy, PyTorch, CuPy, JAX

`attention` and `attention_backward` compute; `get_kernel`, `supports`, `explain`, `emit`, `tune`, `cache` and the
other functions are the library's own, on a `Config`. Errors are subclasses of `FlashwrightError`.
"""

from __future__ import annotations

from . import _log, _native
from ._attention import attention, attention_backward
from ._blocks import Blocks
from ._config import Config, Shape
from ._errors import (CapturingError, CompileError, DeviceError, FileError, FlashwrightError, FlashwrightTypeError,
                      FlashwrightValueError, InternalError, NotCachedError, StoppedError, UnavailableError,
                      UnsupportedError)
from ._native import Kernel
from ._questions import (bench, cache, compile, doctor, emit, explain, get_kernel, normalise, prepare, supports, tune)

__version__: str = _native.version()
__all__ = [
    "Blocks", "CapturingError", "CompileError", "Config", "DeviceError", "FileError", "FlashwrightError",
    "FlashwrightTypeError", "FlashwrightValueError", "InternalError", "Kernel", "NotCachedError", "Shape",
    "StoppedError", "UnavailableError", "UnsupportedError", "attention", "attention_backward", "bench", "cache",
    "compile", "doctor", "emit", "explain", "get_kernel", "normalise", "prepare", "supports", "tune",
]

_log.start()
