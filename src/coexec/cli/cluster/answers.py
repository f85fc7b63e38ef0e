"""Answers of a pipeline, compared with ONNX Runtime's."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from coexec.arrays import Array
from coexec.cli.arrays import packed
from coexec.cli.checks import judged_by
from coexec.cli.cluster.frames import Frames
from coexec.model.difference import tolerance_of, worst_difference
from coexec.selection.opened_model import OpenedModel

__all__ = ["Answers"]

_NONE: Mapping[str, Any] = MappingProxyType({})


class Answers:
    """Differences of answers from ONNX Runtime's and, with ``keep``, also the answers."""

    def __init__(self, model: OpenedModel, frames: Frames, check: bool, keep: bool) -> None:
        self._model, self._kinds, self._keep = model, frames.kinds, keep
        self._expected = [model.reference(feeds) for feeds in frames.kinds] if check else []
        self._kept: dict[str, list[Array]] = {}
        self.differences: dict[str, float] = {}
        """Largest difference, by output."""
        self._worst_kind = 0

    def take(self, kind: int, outputs: Mapping[str, Any]) -> None:
        """Compare, and keep, an answer to a frame of kind ``kind``."""
        if self._expected:
            for name, array in outputs.items():
                differs = worst_difference(array, self._expected[kind][name])
                if not differs <= max(self.differences.values(), default=0.0):  # true for NaN, too
                    self._worst_kind = kind
                self.differences[name] = max(differs, self.differences.get(name, 0.0))
        if self._keep:
            for name, array in outputs.items():
                self._kept.setdefault(name, []).append(array)

    def packed(self) -> bytes:
        """The kept answers as an .npz file, with frames along the first axis."""
        return packed({name: np.stack(arrays) for name, arrays in self._kept.items()})

    def judged(self, facts: Mapping[str, Any] = _NONE) -> str:
        """Text of the verdict on all answers.

        Args:
            facts: facts for the JSON document, printed with the error.

        Raises:
            CheckError: an answer differs by more than rounding.
        """
        worst = max(self.differences.values(), default=0.0)
        allowed = tolerance_of(self._model.model.graph)
        return judged_by(worst, allowed, self._model, self._kinds[self._worst_kind], facts)
