"""Forms in which a session returns the outputs of a request. `IOBinding` is another one."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from coexec.arrays import Array
from coexec.session.feeds import as_ortvalue
from coexec.session.ort_backend import OrtBackend

__all__ = ["ARRAYS", "ORT_VALUES", "OutputForm"]


class OutputForm(Protocol):
    """The form in which a request's outputs are returned."""

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
