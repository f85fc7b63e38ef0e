"""ONNX Runtime's own session class, and its errors in the classes of coexec.

Programs replace the class by assignment, ``onnxruntime.InferenceSession =
coexec.InferenceSession``. Therefore code that needs ONNX Runtime's own class imports it from here.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import onnxruntime
from onnxruntime import InferenceSession as OrtSession

from coexec.errors import CoexecError, ExecutionError, InputError, first_line

__all__ = [
    "FOLDER_OF_WEIGHTS",
    "OpenSession",
    "OrtSession",
    "as_ours",
    "both",
    "in_our_words",
    "on_cpu",
    "raised_by_ort",
    "reason_of",
]

FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"
"""ONNX Runtime's option for the folder with the weights of a model that is given as bytes."""

OpenSession = Callable[[Any, onnxruntime.SessionOptions], OrtSession]
"""Makes a session of a model, its path or its bytes, with options: the execution providers are its
own choice."""

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (/\S+:\d+ .*?\) )?")
_FOLDER = os.path.dirname(onnxruntime.__file__) + os.sep
_ITS_ERRORS = (AttributeError, MemoryError, RuntimeError, TypeError, ValueError)
_CALLERS_FAULT = ("AttributeError", "InvalidArgument", "RuntimeError", "TypeError", "ValueError")


def on_cpu(model: Any, options: onnxruntime.SessionOptions) -> OrtSession:
    """A session on CPU cores alone."""
    return OrtSession(model, options, providers=["CPUExecutionProvider"])


@contextmanager
def as_ours(
    callers: type[CoexecError] = InputError,
    engines: type[CoexecError] = ExecutionError,
) -> Iterator[None]:
    """Convert errors of ONNX Runtime as `in_our_words` does."""
    try:
        yield
    except Exception as error:
        if (converted := in_our_words(error, callers, engines)) is None:
            raise
        raise converted from error


def in_our_words(
    error: Exception,
    callers: type[CoexecError] = InputError,
    engines: type[CoexecError] = ExecutionError,
    because: Callable[[], CoexecError | None] = lambda: None,
) -> CoexecError | None:
    """An error of ONNX Runtime with a message of one line. Its class derives from a class of coexec
    and from ONNX Runtime's class. None for other errors, for example of the program's signal
    handler.

    Args:
        callers: the class of coexec for errors that the caller caused.
        engines: the class of coexec for all other errors.
        because: returns a more precise error for an error that the caller caused, or None.
    """
    if isinstance(error, CoexecError) or not raised_by_ort(error):
        return None
    coexec_class = callers if type(error).__name__ in _CALLERS_FAULT else engines
    precise_error = because() if coexec_class is callers else None
    return both(coexec_class, type(error))(str(precise_error or reason_of(error)))


def reason_of(error: BaseException) -> str:
    """ONNX Runtime's message in one line, without its error code and source location."""
    return _PREFIX.sub("", first_line(error))


def raised_by_ort(error: Exception) -> bool:
    """Whether ONNX Runtime raised the error, by its type or by the file in which it was raised."""
    if type(error).__module__.startswith("onnxruntime."):
        return True
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not isinstance(error, _ITS_ERRORS):
        return False
    return traceback.tb_frame.f_code.co_filename.startswith(_FOLDER)


_classes: dict[tuple[type[CoexecError], type[Exception]], type[CoexecError]] = {}


def both(own: type[CoexecError], foreign: type[Exception]) -> type[CoexecError]:
    """A class that derives from both classes, so that ``except`` with either class catches it."""
    if issubclass(own, foreign):
        return own
    if (own, foreign) not in _classes:
        _classes[own, foreign] = type(foreign.__name__, (own, foreign), {})
    return _classes[own, foreign]
