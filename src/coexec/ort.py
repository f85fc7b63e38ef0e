"""ONNX Runtime's own session class, and a subclass that opens the session when it is needed.

Programs replace the class by assignment, ``onnxruntime.InferenceSession =
coexec.InferenceSession``. Therefore code that needs ONNX Runtime's own class imports it from here.
"""

import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import onnxruntime
from onnxruntime import InferenceSession as OrtSession

from coexec.errors import CoexecError, ExecutionError, InputError, ModelError, first_line

__all__ = ["LazyOrtSession", "OrtSession", "as_ours", "both", "raised_by_ort", "reason_of"]

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (/\S+:\d+ .*?\) )?")
_FOLDER = os.path.dirname(onnxruntime.__file__) + os.sep
_ITS_ERRORS = (AttributeError, MemoryError, RuntimeError, TypeError, ValueError)
_CALLERS_FAULT = ("AttributeError", "InvalidArgument", "RuntimeError", "TypeError", "ValueError")


class LazyOrtSession(OrtSession):  # type: ignore[misc]
    """ONNX Runtime's session class with a session that is opened on first use, and whose memory can
    be freed.

    The attributes that ONNX Runtime's constructor sets are missing until then; reading one opens
    the session.
    """

    def __init__(self, model: Callable[[], str | bytes], *arguments: Any, **keywords: Any) -> None:
        """Store the arguments for ONNX Runtime's constructor.

        Args:
            model: returns the path or the bytes of the model, and raises CoexecError if it cannot.
        """
        self._ort_call = model, arguments, keywords
        self._ort_lock = threading.RLock()
        self._ort_names: frozenset[str] = frozenset()
        self._ort_handles: weakref.WeakSet[Any] = weakref.WeakSet()
        """The native sessions that were opened and are still referenced."""

    @property
    def ort_is_open(self) -> bool:
        """Whether ONNX Runtime holds the model in memory."""
        return bool(self._ort_names)

    def open_ort(self) -> None:
        """Open the session now.

        Raises:
            ModelError: ONNX Runtime refuses the model. The error is also an instance of ONNX
                Runtime's own class.
        """
        with self._ort_lock:
            if self._ort_names:
                return
            before = set(vars(self))
            model, arguments, keywords = self._ort_call
            source = model()
            try:
                with as_ours(ModelError, ModelError):
                    OrtSession.__init__(self, source, *arguments, **keywords)
            except ModelError:
                if not isinstance(source, str) or not os.path.islink(source):
                    raise
                # The weights may be in the folder of the file that the link points to.
                with as_ours(ModelError, ModelError):
                    OrtSession.__init__(self, os.path.realpath(source), *arguments, **keywords)
            self._ort_handles.add(self._sess)
            self._ort_names = frozenset(set(vars(self)) - before)

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Open the session, and keep it open until the block ends."""
        with self._ort_lock:
            self.open_ort()
            yield

    def give_back_ort(self) -> None:
        """Free the session's memory, after the running threads have left it. The session is opened
        again when it is needed."""
        with self._ort_lock:
            names, self._ort_names = self._ort_names, frozenset()
            for name in names:
                self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        closed = name.startswith("_") and not name.startswith("__") and "_ort_call" in vars(self)
        if closed and not name.startswith("_ort_") and not self._ort_names:
            self.open_ort()
            return getattr(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@contextmanager
def as_ours(
    callers: type[CoexecError] = InputError,
    engines: type[CoexecError] = ExecutionError,
    because: Callable[[], CoexecError | None] = lambda: None,
) -> Iterator[None]:
    """Convert errors of ONNX Runtime to errors with a message of one line. Their class derives from
    a class of coexec and from ONNX Runtime's class.

    Args:
        callers: the class of coexec for errors that the caller caused.
        engines: the class of coexec for all other errors.
        because: returns a more precise error for an error that the caller caused, or None.
    """
    try:
        yield
    except CoexecError:
        raise
    except Exception as error:
        if not raised_by_ort(error):
            raise  # for example from a signal handler of the program
        coexec_class = callers if type(error).__name__ in _CALLERS_FAULT else engines
        precise_error = because() if coexec_class is callers else None
        raise both(coexec_class, type(error))(str(precise_error or reason_of(error))) from error


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
