"""The interface of a model that a server offers to several clients at the same time."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from coexec.arrays import Array
from coexec.errors import UsageError

_RESERVED = "stats"
"""The path /v2/models/stats gives the statistics of all models, as in Triton."""


def check_name(name: str) -> None:
    """Check that a model can have this name in paths.

    Raises:
        UsageError: it is empty, reserved, or has characters that a path cannot have.
    """
    if not name or "/" in name or not name.isprintable():
        raise UsageError(
            f"the name {name!r} cannot be a part of a URL; give one or more printable characters "
            f"without '/'"
        )
    if name == _RESERVED:
        raise UsageError(
            f"no model can have the name {name!r}, because /v2/models/{name} is the path of the "
            f"statistics; give it another name, as NAME=MODEL or by renaming its file"
        )


@dataclass(frozen=True)
class ServedTensor:
    """An input or output of a served model."""

    name: str
    dtype: np.dtype[Any]
    """NumPy's type; ``object`` for texts, whose elements are ``str``."""
    shape: tuple[int, ...] | None
    """-1 for an axis of any size; None if the rank is unknown."""


class Served(Protocol):
    """A model under a name, which answers several requests at the same time."""

    @property
    def name(self) -> str:
        """The model's name in paths; without "/"."""

    @property
    def version(self) -> str:
        """The model's version, for example "1"."""

    @property
    def inputs(self) -> Sequence[ServedTensor]:
        """The inputs that a request has to feed."""

    @property
    def outputs(self) -> Sequence[ServedTensor]:
        """The outputs that an answer can have."""

    @property
    def ready(self) -> bool:
        """Whether requests are answered now."""

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        """Begin a request without waiting. The returned future gets the outputs by name.

        Args:
            feeds: an array for each input, of its dtype and shape.

        Raises:
            BusyError: no credit is left.
            ClosedError: requests are no longer answered.
            InputError: the model does not take these feeds. The future may raise it, too.
        """
