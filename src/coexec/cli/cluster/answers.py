"""What a pipeline has answered, beside what ONNX Runtime answers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from coexec.arrays import Array
from coexec.cli.arrays import packed
from coexec.cli.checks import judged_by
from coexec.cli.cluster.frames import Frames
from coexec.frontend.difference import tolerance_of, worst_difference
from coexec.workbench.given import GivenModel

__all__ = ["Answers"]

_NONE: Mapping[str, Any] = MappingProxyType({})


class Answers:
    """What is kept of answers: how much they differ from ONNX Runtime's, and all if wanted."""

    def __init__(self, given: GivenModel, frames: Frames, check: bool, keep: bool) -> None:
        self._given, self._kinds, self._keep = given, frames.kinds, keep
        self._expected = [given.reference(feeds) for feeds in frames.kinds] if check else []
        self._kept: dict[str, list[Array]] = {}
        self.differences: dict[str, float] = {}
        """By output, the largest."""
        self._worst_kind = 0

    def take(self, kind: int, outputs: Mapping[str, Any]) -> None:
        """An answer to a frame of a kind."""
        if self._expected:
            for name, found in outputs.items():
                differs = worst_difference(found, self._expected[kind][name])
                if not differs <= max(self.differences.values(), default=0.0):  # or not a number
                    self._worst_kind = kind
                self.differences[name] = max(differs, self.differences.get(name, 0.0))
        if self._keep:
            for name, found in outputs.items():
                self._kept.setdefault(name, []).append(found)

    def packed(self) -> bytes:
        """As an .npz file, frames along the first axis."""
        return packed({name: np.stack(arrays) for name, arrays in self._kept.items()})

    def judged(self, facts: Mapping[str, Any] = _NONE) -> str:
        """In words.

        Args:
            facts: what is printed for programs beside the error.

        Raises:
            CheckError: they are not what they should be.
        """
        worst = max(self.differences.values(), default=0.0)
        allowed = tolerance_of(self._given.model.graph)
        return judged_by(worst, allowed, self._given, self._kinds[self._worst_kind], facts)
