"""`OrtBackend`: answers requests with ONNX Runtime's own session of the whole model."""

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final, Protocol

import onnxruntime

from coexec.arrays import Array
from coexec.errors import ModelError
from coexec.model.main_memory import trim_memory
from coexec.ort import FOLDER_OF_WEIGHTS, OrtSession, as_ours
from coexec.session.feeds import as_ortvalue, for_ort
from coexec.session.model_source import InFiles


@dataclass(frozen=True)
class OrtArguments:
    """The arguments of ONNX Runtime's constructor that follow the model."""

    options: Any
    providers: Sequence[Any] | None
    provider_options: Sequence[Any] | None
    keywords: Mapping[str, Any]

    def open(self, model: str | bytes | InFiles) -> Any:
        """A session of ONNX Runtime's own class.

        Raises:
            ModelError: ONNX Runtime refuses the model.
        """
        options = self.options
        with as_ours(ModelError, ModelError):
            if isinstance(model, InFiles):
                options = onnxruntime.SessionOptions() if options is None else options
                options.add_session_config_entry(FOLDER_OF_WEIGHTS, model.folder)
                model = model.content
            return OrtSession(
                model, options, self.providers, self.provider_options, **self.keywords
            )


class OrtBackend:
    """ONNX Runtime's own session, which is opened on first use, and whose memory can be freed.

    A thread that runs a request keeps the session that it runs; so `give_back` disturbs no request.
    """

    def __init__(self, model: Callable[[], str | bytes | InFiles], arguments: OrtArguments) -> None:
        """
        Args:
            model: returns the path or the content of the model; raises CoexecError if it cannot.
        """
        self._model = model
        self.arguments = arguments
        self._lock = threading.RLock()
        self._session: Any = None
        self._output_names: list[str] = []
        self._handles: weakref.WeakSet[Any] = weakref.WeakSet()
        """The native sessions that were opened and are still referenced."""
        self.is_pinned = False
        """Whether the session has a state that would be lost if its memory was freed."""

    @property
    def is_open(self) -> bool:
        """Whether ONNX Runtime holds the model in memory."""
        return self._session is not None

    @property
    def handle(self) -> Any:
        """The native session; None if it is not open."""
        session = self._session
        return None if session is None else session._sess

    def open(self) -> Any:
        """ONNX Runtime's own session. It is opened if necessary.

        Raises:
            ModelError: ONNX Runtime refuses the model. The error is also an instance of ONNX
                Runtime's own class.
        """
        with self._lock:
            session = self._session
            if session is None:
                session = self._opened()
                self._handles.add(session._sess)
                self._output_names = [output.name for output in session.get_outputs()]
                self._session = session
            return session

    def _opened(self) -> Any:
        model = self._model()
        try:
            return self.arguments.open(model)
        except ModelError:
            if not isinstance(model, str) or not os.path.islink(model):
                raise
            # The weights may be in the folder of the file that the link points to.
            return self.arguments.open(os.path.realpath(model))

    def pin(self) -> Any:
        """The session, for a change of its state. It stays open from now on."""
        self.is_pinned = True
        return self.open()

    def give_back(self) -> None:
        """Free the session's memory, after the running requests have left it. The session is opened
        again when it is needed."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None and session._sess not in self._handles:
                # ONNX Runtime has fallen back to other providers, which stay in use.
                self._set(providers=session.get_providers(), provider_options=None)
                self.set_fallback(session._enable_fallback)
            del session
        trim_memory()

    def _set(self, **arguments: Any) -> None:
        self.arguments = replace(self.arguments, **arguments)

    def run(self, output_names: Sequence[str] | None, feeds: Any, run_options: Any) -> Any:
        """The list of the outputs of a request, as arrays.

        The native session is called without the checks of ONNX Runtime's Python method. If it
        refuses the request, that method runs, which raises the errors that programs expect.
        """
        session = self._session or self.open()
        if run_options is None:
            try:
                return session._sess.run(output_names or self._output_names, feeds, None)
            except Exception as error:
                if not _is_native(error):
                    raise
        return session.run(output_names, for_ort(feeds, session.get_inputs()), run_options)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, feeds: Any, run_options: Any
    ) -> Any:
        """The list of the outputs of a request with ``OrtValue`` feeds, as such values."""
        return self.open().run_with_ort_values(output_names, feeds, run_options)

    def run_bound(self, binding: Any, run_options: Any) -> None:
        """Answer a request whose inputs and outputs are bound by ONNX Runtime's class, even if the
        session of the binding was replaced meanwhile."""
        handle = binding._session
        if handle is not self.handle and handle in self._handles:
            session: Any = SimpleNamespace(_sess=handle, _captured_graph_bindings={})
        else:
            session = self.open()
        OrtSession.run_with_iobinding(session, binding, run_options)

    @property
    def options(self) -> Any:
        """The session's options, or those with which it will be opened."""
        session = self._session
        if session is not None:
            return session.get_session_options()
        return self.arguments.options or onnxruntime.SessionOptions()

    @property
    def providers(self) -> list[str]:
        """Names of the session's execution providers."""
        session = self._session
        if session is not None:
            return list(session.get_providers())
        names = [p[0] if isinstance(p, tuple) else p for p in self.arguments.providers or ()]
        usable = set(onnxruntime.get_available_providers())
        return list(dict.fromkeys((*(p for p in names if p in usable), "CPUExecutionProvider")))

    @property
    def provider_options(self) -> dict[str, Any]:
        """The options of the session's execution providers, by name."""
        arguments = self.arguments
        plain = not arguments.provider_options and not any(
            isinstance(p, tuple) for p in arguments.providers or ()
        )
        if plain and not self.is_open and self.providers == ["CPUExecutionProvider"]:
            return {"CPUExecutionProvider": {}}
        return dict(self.open().get_provider_options())

    def set_providers(self, providers: Sequence[Any] | None, provider_options: Any) -> None:
        """Reopen the session with these execution providers."""
        before = self.arguments
        self.give_back()
        self._set(providers=providers, provider_options=provider_options)
        try:
            self.open()
        except Exception:
            self.arguments = before
            raise

    def set_fallback(self, on: bool) -> None:
        """Set whether the session falls back to other execution providers when one fails."""
        with self._lock:
            self._set(keywords={**self.arguments.keywords, "enable_fallback": int(on)})
            if self._session is not None:
                self._session._enable_fallback = on


def providers_of_ort(providers: Sequence[Any] | None) -> Sequence[Any] | None:
    """``providers`` without devices of coexec, which `get_providers` lists, too."""
    if providers is None:
        return None
    return [p for p in providers if not (isinstance(p, str) and ":" in p)]


def _is_native(error: Exception) -> bool:
    """Whether the native session raised the error in `OrtBackend.run`, and not the program's signal
    handler."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code is OrtBackend.run.__code__


class OutputForm(Protocol):
    """The form in which a request's outputs are returned. `IOBinding` is another one."""

    has_feeds: bool
    """Whether ONNX Runtime's own session gets the feeds of the request, and not feeds that are
    bound."""

    def of_plan(self, arrays: list[Array]) -> Any:
        """The outputs of a plan in this form; None if they do not fit it, so that ONNX Runtime's
        own session answers."""
        ...

    def of_ort(
        self, ort: OrtBackend, output_names: Sequence[str] | None, feeds: Any, run_options: Any
    ) -> Any:
        """The outputs of ONNX Runtime's own session in this form."""
        ...


class _Arrays:
    has_feeds = True

    def of_plan(self, arrays: list[Array]) -> list[Array]:
        return arrays

    of_ort = staticmethod(OrtBackend.run)


class _OrtValues:
    has_feeds = True

    def of_plan(self, arrays: list[Array]) -> list[Any] | None:
        values = [as_ortvalue(array) for array in arrays]
        return None if any(value is None for value in values) else values

    of_ort = staticmethod(OrtBackend.run_with_ort_values)


ARRAYS: Final[OutputForm] = _Arrays()
ORT_VALUES: Final[OutputForm] = _OrtValues()
