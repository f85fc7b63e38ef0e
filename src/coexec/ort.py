"""ONNX Runtime's own session: its class as it is, and as a base of ours that opens it when needed.

Programs replace the class by assignment, ``onnxruntime.InferenceSession =
coexec.InferenceSession``. Whoever needs ONNX Runtime's own takes it from here.
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
    """ONNX Runtime's session class with a session that is opened when it is first asked for, and
    that can be given back.

    All that ONNX Runtime's constructor sets is missing until then; asking for it opens the session.
    """

    def __init__(self, model: Callable[[], str | bytes], *arguments: Any, **keywords: Any) -> None:
        """Keep what ONNX Runtime's constructor is to be called with.

        Args:
            model: gives the model's path or its bytes, and raises CoexecError if it cannot.
        """
        self._ort_call = model, arguments, keywords
        self._ort_lock = threading.RLock()
        self._ort_names: frozenset[str] = frozenset()
        self._ort_handles: weakref.WeakSet[Any] = weakref.WeakSet()
        """The sessions that were opened and are still in use somewhere."""

    @property
    def ort_is_open(self) -> bool:
        """Whether ONNX Runtime holds the model in memory."""
        return bool(self._ort_names)

    def open_ort(self) -> None:
        """Open the session now.

        Raises:
            ModelError: ONNX Runtime refuses the model. It is also of ONNX Runtime's own class.
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
                # The weights may lie beside the file that the link leads to.
                with as_ours(ModelError, ModelError):
                    OrtSession.__init__(self, os.path.realpath(source), *arguments, **keywords)
            self._ort_handles.add(self._sess)
            self._ort_names = frozenset(set(vars(self)) - before)

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """The session open, and not given back by another thread meanwhile."""
        with self._ort_lock:
            self.open_ort()
            yield

    def give_back_ort(self) -> None:
        """Free the session's memory, once no thread runs in it. It is opened again when needed."""
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
    """Errors of ONNX Runtime in one line, of our classes and of its own at once.

    Args:
        callers: where the caller is to blame.
        engines: elsewhere.
        because: gives an error of ours that says more, where the caller is to blame.
    """
    try:
        yield
    except CoexecError:
        raise
    except Exception as error:
        if not raised_by_ort(error):
            raise  # by a signal handler of the program
        ours = callers if type(error).__name__ in _CALLERS_FAULT else engines
        told = because() if ours is callers else None
        raise both(ours, type(error))(str(told or reason_of(error))) from error


def reason_of(error: BaseException) -> str:
    """What ONNX Runtime says, in one line and without its own numbers and places."""
    return _PREFIX.sub("", first_line(error))


def raised_by_ort(error: Exception) -> bool:
    """Whether ONNX Runtime raised it: by its type, or because its own code is where it arose."""
    if type(error).__module__.startswith("onnxruntime."):
        return True
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not isinstance(error, _ITS_ERRORS):
        return False
    return traceback.tb_frame.f_code.co_filename.startswith(_FOLDER)


_classes: dict[tuple[type[CoexecError], type[Exception]], type[CoexecError]] = {}


def both(ours: type[CoexecError], theirs: type[Exception]) -> type[CoexecError]:
    """A class that ``except`` finds under either name."""
    if issubclass(ours, theirs):
        return ours
    if (ours, theirs) not in _classes:
        _classes[ours, theirs] = type(theirs.__name__, (ours, theirs), {})
    return _classes[ours, theirs]
