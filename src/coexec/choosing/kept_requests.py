"""Requests that ONNX Runtime has answered: a plan is compared with them before it takes over.

Made-up inputs show much, real ones show what matters. A few are kept, in memory only, while a plan
is made for their shapes; what the program feeds and gets is copied, as it may change both.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coexec.arrays import Array
from coexec.choosing.comparison import Agreement
from coexec.errors import CoexecError, first_line
from coexec.ir.graph import Tensor
from coexec.runtime.runner import Runner
from coexec.workbench import Prepared

__all__ = ["ENOUGH", "KeptRequests"]

ENOUGH = 3
"""Requests that have to agree where nothing else could be compared."""
_MOST_BYTES = 32 << 20
"""Of all that is kept for one plan; larger requests are not kept."""
_PERIOD_S = 2.0
"""Between requests that are kept: requests that follow each other are often alike."""


@dataclass(frozen=True, eq=False)
class _KeptRequest:
    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def fits(self, inputs: Sequence[Tensor]) -> bool:
        """Whether a plan for ``inputs`` takes these feeds."""
        return all(
            t.name in self.feeds and self.feeds[t.name].shape == t.shape
            and self.feeds[t.name].dtype == np.dtype(t.dtype) for t in inputs if not t.opaque
        ) and not any(t.opaque for t in inputs)  # fmt: skip


class KeptRequests:
    """The latest requests of one set of shapes with ONNX Runtime's answers.

    May be used by several threads.
    """

    def __init__(self) -> None:
        self._kept: deque[_KeptRequest] = deque(maxlen=ENOUGH)
        self._lock = threading.Lock()
        self._next_s = 0.0

    @property
    def full(self) -> bool:
        """Whether there are enough to decide by them alone."""
        return len(self._kept) == ENOUGH

    def add(self, feeds: Any, names: Sequence[str], outputs: Sequence[Any]) -> None:
        """Keep a request, if it is time for one, and all of it are arrays."""
        now_s = time.monotonic()
        if now_s < self._next_s and self.full:
            return
        arrays = isinstance(feeds, Mapping) and all(
            isinstance(value, np.ndarray) and value.dtype != object
            for value in (*feeds.values(), *outputs)
        )
        if not arrays:
            return
        size_bytes = sum(value.nbytes for value in (*feeds.values(), *outputs))
        if size_bytes > _MOST_BYTES // ENOUGH:
            return
        fed = {name: np.array(value, order="C") for name, value in feeds.items()}
        made = {name: np.array(value) for name, value in zip(names, outputs, strict=True)}
        with self._lock:
            self._next_s = now_s + _PERIOD_S
            self._kept.append(_KeptRequest(fed, made))

    def compare(
        self, prepared: Prepared, runner: Runner, rules: Agreement
    ) -> tuple[int, str | None]:
        """How many requests a plan answers as ONNX Runtime did, and how it differs if it does."""
        with self._lock:
            requests = [r for r in self._kept if r.fits(prepared.compiled.inputs)]
        for request in requests:
            try:
                found = runner.run(request.feeds)
            except CoexecError as error:
                return 0, f"a request that ONNX Runtime has answered fails: {first_line(error)}"
            for name, text in rules.why_unlike(found, request.outputs, request.feeds):
                return 0, f"for a request of the program, output {name!r} {text}"
        return len(requests), None
