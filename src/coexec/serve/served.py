"""What a server serves: a model that takes requests from several clients at once."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from coexec.arrays import Array

__all__ = ["Served", "ServedTensor"]


@dataclass(frozen=True)
class ServedTensor:
    """An input or output of what is served."""

    name: str
    dtype: np.dtype[Any]
    """NumPy's; ``object`` for texts, whose elements are ``str``."""
    shape: tuple[int, ...] | None
    """-1 for an axis of any size; None if the rank is not known either."""


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
        """What a request has to feed."""

    @property
    def outputs(self) -> Sequence[ServedTensor]:
        """What an answer can hold."""

    @property
    def ready(self) -> bool:
        """Whether requests are answered now."""

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        """Begin a request, and return its outputs by name, when they are there. Does not wait.

        Args:
            feeds: an array for each input, of its dtype and shape.

        Raises:
            BusyError: no credit is left.
            ClosedError: no request is answered any more.
            InputError: the model does not take these feeds. The future may raise it, too.
        """
