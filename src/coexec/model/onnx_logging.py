"""Silences the log messages of ONNX's libraries beside the errors that they raise."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence logging in the ``with`` block: steps that an optimizer leaves out, with stack traces,
    and advice on damaged models."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir",)]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
