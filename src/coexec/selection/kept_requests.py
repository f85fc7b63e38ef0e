"""Requests that ONNX Runtime has answered: a plan is compared with them before it answers.

Made-up inputs reveal many differences, but real inputs are the ones that matter. A few requests are
kept while a plan is made for their shapes, in memory only. Inputs and outputs are copied, because
the program may change both.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coexec.arrays import Array, is_finite, is_ordinary
from coexec.errors import CoexecError, first_line
from coexec.runtime.runner import Runner

if TYPE_CHECKING:
    from coexec.graph.graph import Tensor
    from coexec.selection.comparison import Agreement
    from coexec.selection.prepared import Prepared

ENOUGH = 3
"""Number of requests that have to agree if a plan could not be compared in another way."""
_MOST_BYTES = 32 << 20
"""Largest size of all requests that are kept for one plan; larger requests are not kept."""
_PERIOD_S = 2.0
"""Seconds between kept requests, because requests that follow each other are often alike."""


@dataclass(frozen=True, eq=False)
class _KeptRequest:
    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def fits(self, inputs: Sequence["Tensor"]) -> bool:
        """Whether a plan for ``inputs`` takes these feeds."""
        return all(
            t.name in self.feeds
            and self.feeds[t.name].shape == t.shape
            and self.feeds[t.name].dtype == np.dtype(t.dtype)
            for t in inputs
            if not t.opaque
        ) and not any(t.opaque for t in inputs)


class KeptRequests:
    """The latest requests of one set of shapes with ONNX Runtime's answers.

    May be used by several threads.
    """

    def __init__(self, period_s: float = _PERIOD_S, most_bytes: int = _MOST_BYTES) -> None:
        """
        Args:
            period_s: seconds between kept requests.
            most_bytes: largest size of all kept requests.
        """
        self._period_s, self._most_bytes = period_s, most_bytes
        self._kept: deque[_KeptRequest] = deque(maxlen=ENOUGH)
        self._lock = threading.Lock()
        self._next_s = 0.0

    @property
    def full(self) -> bool:
        """Whether there are enough requests to decide by them alone."""
        return len(self._kept) == ENOUGH

    def add(self, feeds: Any, names: Sequence[str], outputs: Sequence[Any]) -> None:
        """Keep a request, if the last one is old enough, all inputs and outputs are arrays, and a
        plan would answer it: it has no unusual numbers."""
        now_s = time.monotonic()
        if now_s < self._next_s and self.full:
            return
        arrays = isinstance(feeds, Mapping) and all(
            isinstance(value, np.ndarray) and value.dtype != object
            for value in (*feeds.values(), *outputs)
        )
        if not arrays:
            return
        if not (all(map(is_ordinary, feeds.values())) and all(map(is_finite, outputs))):
            return
        size_bytes = sum(value.nbytes for value in (*feeds.values(), *outputs))
        if size_bytes > self._most_bytes // ENOUGH:
            return
        kept_feeds = {name: np.array(value, order="C") for name, value in feeds.items()}
        kept_outputs = {name: np.array(value) for name, value in zip(names, outputs, strict=True)}
        with self._lock:
            self._next_s = now_s + self._period_s
            self._kept.append(_KeptRequest(kept_feeds, kept_outputs))

    def compare(
        self, prepared: "Prepared", runner: Runner, rules: "Agreement"
    ) -> tuple[int, str | None]:
        """Number of requests that a plan answers as ONNX Runtime did, and how an answer differs.

        If an answer differs, the number is 0; otherwise the text is None.
        """
        with self._lock:
            requests = [r for r in self._kept if r.fits(prepared.compiled.inputs)]
        for request in requests:
            try:
                answers = runner.run(request.feeds)
            except CoexecError as error:
                return 0, f"a request that ONNX Runtime has answered fails: {first_line(error)}"
            for name, text in rules.why_unlike(answers, request.outputs):
                return 0, f"for a request of the program, output {name!r} {text}"
        return len(requests), None
