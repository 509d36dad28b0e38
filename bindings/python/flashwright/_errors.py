"""The exceptions of the package: all are FlashwrightError, and each is also what Python programs catch for its kind."""

from __future__ import annotations


class FlashwrightError(Exception):
    """What every function of this package raises when it fails.

    message: what happened; it names the argument, what was given and what is allowed.
    detail: long material such as a compiler's log, often empty.
    status: the number of the C interface (docs/c-interface.md), -1 for an error of type.
    """

    status = 10

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message + ("\n" + detail if detail else ""))
        self.message = message
        self.detail = detail


class FlashwrightValueError(FlashwrightError, ValueError):
    """A value is not allowed: a shape, a stride, a device, a field of a Config."""

    status = 1


class FlashwrightTypeError(FlashwrightError, TypeError):
    """An argument is of the wrong type, or a tensor has the wrong element type."""

    status = -1


class UnsupportedError(FlashwrightError, NotImplementedError):
    """No kernel family can do it; the message has every reason."""

    status = 2


class NotCachedError(FlashwrightError, RuntimeError):
    """The effort allowed was too small."""

    status = 3


class CompileError(FlashwrightError, RuntimeError):
    """The compiler refused a kernel; the detail is its log."""

    status = 4


class UnavailableError(FlashwrightError, RuntimeError):
    """A driver, a compiler, the CPU plugin or a device is missing."""

    status = 5


class CapturingError(FlashwrightError, RuntimeError):
    """The call cannot be made while a CUDA stream is being captured."""

    status = 6


class DeviceError(FlashwrightError, RuntimeError):
    """The driver reported an error, or device memory is short."""

    status = 7


class FileError(FlashwrightError, OSError):
    """A file could not be read or written."""

    status = 8


class StoppedError(FlashwrightError, RuntimeError):
    """A progress function asked to stop."""

    status = 9


class InternalError(FlashwrightError, RuntimeError):
    """A mistake of the library, or no host memory."""


_CLASSES = {kind.status: kind for kind in (
    FlashwrightValueError, FlashwrightTypeError, UnsupportedError, NotCachedError, CompileError, UnavailableError,
    CapturingError, DeviceError, FileError, StoppedError)}


def make(status: int, message: str, detail: str) -> FlashwrightError:
    """The exception for a status of the C interface; called by the extension module."""
    return _CLASSES.get(status, InternalError)(message, detail)


def bad_value(name: str, given: object, expected: str) -> FlashwrightValueError:
    return FlashwrightValueError(f"{name}: given {given}; expected {expected}")


def bad_type(name: str, given: object, expected: str) -> FlashwrightTypeError:
    return FlashwrightTypeError(f"{name}: given {given}; expected {expected}")
