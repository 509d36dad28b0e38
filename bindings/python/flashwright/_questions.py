"""Functions on Configs: what is supported, which kernel would serve, its text, tuning, the stores."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Sequence

from . import _native
from ._config import ConfigLike, config_text, effort_number, json_text, shape_tuple

ShapeLike = Sequence[int]
Progress = Callable[[int, int, "dict[str, Any]"], Any]


def get_kernel(config: ConfigLike, shape: ShapeLike | None = None, effort: str = "compile") -> _native.Kernel:
    """The kernel of a Config: loaded, from the store, compiled or tuned, as far as the effort allows.

    shape: (batch, heads_q, heads_kv, seq_q, seq_kv) that it should be fast for; it is right for every shape.
    effort: "loaded" (only what this process has loaded), "cached" (also the store), "compile" (also the compiler),
    "tune" (also up to 20 s of search). Raises NotCachedError when that was too little, UnsupportedError,
    UnavailableError, CompileError.
    """
    return _native.get_kernel(config_text(config), shape_tuple(shape), effort_number(effort))


def prepare(configs: Iterable[ConfigLike], effort: str = "compile",
            progress: Progress | None = None) -> list[dict[str, Any]]:
    """Gets many kernels in parallel. The report has a row for each; one failure does not stop the rest."""
    texts = "[" + ",".join(config_text(config) for config in configs) + "]"
    return _native.prepare(texts, effort_number(effort), progress)


def supports(config: ConfigLike) -> list[str]:
    """Every reason why the library cannot do it here: empty when it can."""
    return _native.supports(config_text(config))


def normalise(config: ConfigLike) -> dict[str, Any]:
    """The Config with every default explicit, and the dropout that is realised."""
    return _native.normalise(config_text(config))


def explain(config: ConfigLike, shape: ShapeLike | None = None) -> dict[str, Any]:
    """Which kernel serves this Config and shape, from where, and why. Compiles nothing."""
    return _native.explain(config_text(config), shape_tuple(shape))


def emit(config: ConfigLike, shape: ShapeLike | None = None) -> str:
    """The text (CUDA C++ or LLVM IR) that would be compiled; for any known target, present or not."""
    return _native.emit(config_text(config), shape_tuple(shape))


def compile(config: ConfigLike, shape: ShapeLike | None = None) -> tuple[dict[str, Any], bytes]:
    """Compiles for any known target and stores: a report (resources, time, warnings) and the machine code."""
    return _native.compile(config_text(config), shape_tuple(shape))


def tune(config: ConfigLike, shape: ShapeLike | None = None, *, budget_s: float = 60, device: Any = None,
         seed: int = 1, progress: Progress | None = None) -> dict[str, Any]:
    """Searches for the fastest schedule, for budget_s seconds, and stores what it learns.

    shape: (batch, heads_q, heads_kv, seq_q, seq_kv). device: name of a known device or a profile, for one that is
    absent; the result is then a prediction. progress(done, total, event): a true result stops the search, and what
    was learned is kept; an exception, Ctrl-C too, stops it and is raised.
    """
    options = {"budget_s": budget_s, "seed": seed}
    if device is not None:
        options["device"] = device
    return _native.tune(config_text(config), shape_tuple(shape), json_text("options", options), progress)


def bench(config: ConfigLike, shape: ShapeLike | None = None, *, against: str = "",
          seconds: float = 2) -> dict[str, Any]:
    """Verifies the kernel of a Config, then times it; against="unfused" times the unfused computation beside it."""
    options = {"against": against, "seconds": seconds}
    return _native.bench(config_text(config), shape_tuple(shape), json_text("options", options))


def cache(operation: str = "path", argument: str = "") -> dict[str, Any]:
    """Work on the stores: "path", "ls", "show" (start of a key), "verify", "prune" (bytes to keep), "export",
    "import", "export-decisions" (a file)."""
    return _native.cache(operation, argument)


def doctor() -> dict[str, Any]:
    """What this machine has: devices, compilers, stores, environment."""
    return _native.doctor()
