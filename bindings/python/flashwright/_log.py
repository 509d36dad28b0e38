"""The library's log goes to logging.getLogger("flashwright"), whose level decides what is shown."""

from __future__ import annotations

import atexit
import os
import sys

from . import _native

# Levels of the library: error, warning, information, debug; in the numbers of the module logging.
_LEVELS = (40, 30, 20, 10)
_NAMES = {"error": 40, "warn": 30, "info": 20, "debug": 10}


def _write(level: int, line: str) -> None:
    # Who has not imported logging cannot have asked for more than warnings, or by FLASHWRIGHT_LOG alone.
    wanted = _NAMES.get(os.environ.get("FLASHWRIGHT_LOG", ""), 0)
    if "logging" not in sys.modules and _LEVELS[level] < (wanted or 30):
        return
    import logging
    logger = logging.getLogger("flashwright")
    if wanted and logger.level == logging.NOTSET:
        logger.setLevel(wanted)
    logger.log(_LEVELS[level], line)


def start() -> None:
    _native.set_log(_write)
    atexit.register(_native.set_log, None)
