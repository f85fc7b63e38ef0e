"""Facts about a session and its model, available without opening ONNX Runtime's own session."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import onnxruntime

from coexec import arguments
from coexec.ort import LazyOrtSession, OrtSession
from coexec.session.options import why_unplanned
from coexec.session.signature import NodeArg, Signature

__all__ = ["DescribedSession", "fixed", "providers_of_ort"]


class DescribedSession(LazyOrtSession):
    """A session that describes itself with reports of ONNX Runtime's own session.

    The report may come from an earlier process. Changed settings are kept when ONNX Runtime's own
    session is closed.
    """

    _pinned = False
    """Whether ONNX Runtime's own session has a state that would be lost if it was closed."""
    _unplanned: str | None = None

    def _signature_kept(self) -> Signature | None:
        """The stored report about the model; None if there is none."""
        return None

    def _named_devices(self) -> Sequence[str] | None:
        """The devices that the program has named; None if it has named none."""
        return None

    @cached_property
    def _signature(self) -> Signature:
        """ONNX Runtime's report about the model, of this process or of an earlier one."""
        stored = None if self.ort_is_open else self._signature_kept()
        return stored or Signature.of(self)

    def get_inputs(self) -> Sequence[Any]:
        """The model's inputs, in order, with their dimensions as the model names them."""
        return self._signature.inputs

    def get_outputs(self) -> Sequence[Any]:
        """The model's outputs, in order, with their dimensions as the model names them."""
        return self._signature.outputs

    def get_overridable_initializers(self) -> Sequence[Any]:
        """The weights that a feed may replace."""
        return self._signature.overridable

    def get_modelmeta(self) -> Any:
        """The model's metadata."""
        return self._signature.metadata

    def get_session_options(self) -> Any:
        """The options with which ONNX Runtime's own session is or will be opened."""
        if self.ort_is_open:
            return OrtSession.get_session_options(self)
        return self._ort_call[1][0] or onnxruntime.SessionOptions()

    def get_provider_options(self) -> Mapping[str, Any]:
        """The options of ONNX Runtime's execution providers, by name."""
        _, (_, providers, options), _ = self._ort_call
        plain = not options and not any(isinstance(p, tuple) for p in providers or ())
        if plain and not self.ort_is_open and self._ort_providers() == ["CPUExecutionProvider"]:
            return {"CPUExecutionProvider": {}}
        return dict(OrtSession.get_provider_options(self))

    def _ort_providers(self) -> list[str]:
        """Names of the execution providers of ONNX Runtime's own session."""
        if self.ort_is_open:
            return list(OrtSession.get_providers(self))
        names = [p[0] if isinstance(p, tuple) else p for p in self._ort_call[1][1] or ()]
        usable = set(onnxruntime.get_available_providers())
        return list(dict.fromkeys((*(p for p in names if p in usable), "CPUExecutionProvider")))

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Reopen ONNX Runtime's own session with these execution providers.

        No plan answers while one of them is not for the CPU, unless devices were named.
        """
        arguments.check_providers(providers)
        providers = providers_of_ort(providers)
        before = self._ort_call
        model, (options, _, _), keywords = before
        self.give_back_ort()
        self._ort_call = model, (options, providers, provider_options), keywords
        try:
            self.open_ort()
        except Exception:
            self._ort_call = before
            raise
        disabled = keywords.get("disabled_optimizers")
        self._unplanned = why_unplanned(options, providers, self._named_devices(), disabled)

    def disable_fallback(self) -> None:
        """Do not fall back to other execution providers when one fails."""
        self._set_fallback(False)

    def enable_fallback(self) -> None:
        """Fall back to other execution providers when one fails."""
        self._set_fallback(True)

    def _set_fallback(self, on: bool) -> None:
        with self._ort_lock:
            model, positional, keywords = self._ort_call
            self._ort_call = model, positional, {**keywords, "enable_fallback": int(on)}
            if self.ort_is_open:
                self._enable_fallback = on

    def create_ortvalue_from_shape_and_type(self, *given: Any, **named: Any) -> Any:
        """As in ONNX Runtime. The value belongs to its own session, which stays open."""
        self._pinned = True
        return OrtSession.create_ortvalue_from_shape_and_type(self, *given, **named)

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        """As in ONNX Runtime, for its own session, which stays open."""
        self._pinned = True
        OrtSession.set_ep_dynamic_options(self, options)

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        """As in ONNX Runtime, for its own session, which stays open."""
        self._pinned = True
        OrtSession.set_tuning_results(self, results, error_on_invalid=error_on_invalid)


def providers_of_ort(providers: Sequence[Any] | None) -> Sequence[Any] | None:
    """``providers`` without devices of coexec, which `get_providers` lists, too."""
    if providers is None:
        return None
    return [p for p in providers if not (isinstance(p, str) and ":" in p)]


def fixed(arg: Any, shapes: Mapping[str, Any]) -> Any:
    """An input as ONNX Runtime describes it, with the sizes that ``shapes`` fix.

    Args:
        shapes: all sizes of an input by the input's name, or one size by the name of a dimension.
    """
    sizes_of_input = shapes.get(arg.name)
    if isinstance(sizes_of_input, Sequence):
        return NodeArg(arg.name, list(sizes_of_input), arg.type)
    sizes = [shapes.get(d, d) if isinstance(d, str) else d for d in arg.shape]
    return arg if sizes == arg.shape else NodeArg(arg.name, sizes, arg.type)
