"""Silences the log messages of ONNX's libraries beside the errors that they raise."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence logging in the ``with`` block: steps that an optimizer leaves out, with stack traces,
    and advice on damaged models."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        yield
    finally:
        logger.setLevel(level)
