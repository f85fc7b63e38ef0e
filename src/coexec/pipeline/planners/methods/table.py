"""The load of every stage on equal machines: pieces i to j on m machines, equal shares.

For each last piece and each share, pieces are added from the last to the first. The rows that they
need of earlier pieces are kept for the next step. So all stages with the same last piece together
take one pass through the graph, not one pass each.
"""

from collections.abc import Mapping, Sequence

from coexec.pipeline.planners.methods.bodies import equal_cuts, spread, tail_of
from coexec.pipeline.planners.methods.network import StageKey, StageLoad
from coexec.pipeline.planners.methods.rows import Range, RowGraph, bits_of


class StageTable:
    """Loads of all stages of a chain of pieces.

    Args:
        mac_s: seconds per multiply-accumulate on a machine of mean capacity.
    """

    def __init__(self, rows: RowGraph, pieces: Sequence[int], machines: int, mac_s: float) -> None:
        self._rows, self._pieces, self._mac_s = rows, pieces, mac_s
        self.machines = machines
        self.count = len(pieces)
        self._done = [0]
        for piece in pieces:
            self._done.append(self._done[-1] | piece)
        self._crossing = [rows.handed_on(done) for done in self._done]
        self._whole_bytes = [self._bytes(tensors) for tensors in self._crossing]
        self.loads: dict[StageKey, StageLoad] = {}
        self.total_macs: dict[StageKey, int] = {}
        """Multiply-accumulates of all shares of a stage together, halos and tail included."""
        for last in range(self.count):
            self._fill(last)

    def _bytes(self, tensors: Sequence[int]) -> int:
        return sum(self._rows.rows[t] * self._rows.row_bytes[t] for t in tensors)

    def _fill(self, last: int) -> None:
        """Compute all stages that end with piece ``last``."""
        tails, sinks = self._tails(last)
        tail_macs, macs = 0, dict[int, int]()
        for first in range(last, -1, -1):
            tail_macs += sum(self._rows.macs[t] for t in bits_of(self._pieces[first] & tails))
            macs[first] = tail_macs
        height = max(
            (self._rows.rows[s] for s in sinks if self._rows.cuttable[self._rows.maker[s]]),
            default=1,
        )
        for count in range(1, min(self.machines, max(height, 1)) + 1):
            shares = [self._share(last, tails, sinks, height, s) for s in equal_cuts(height, count)]
            for first in range(last + 1):
                works, key = [share[first] for share in shares], (first, last, count)
                self.loads[key] = self._load(first, last, works, macs[first])
                self.total_macs[key] = sum(work[0] for work in works) + macs[first]

    def _load(
        self, first: int, last: int, works: Sequence[tuple[int, int, int]], tail_macs: int
    ) -> StageLoad:
        """The load of one stage.

        Args:
            works: MACs, bytes read and bytes made of each share; the leader's share is first.
        """
        total = sum(macs for macs, _, _ in works)
        busiest = max(macs for macs, _, _ in works)
        if tail_macs:  # the leader gets fewer rows, so that all finish together
            busiest = max(tail_macs, -(-(total + tail_macs) // len(works)))
        end = last + 1 == self.count
        return StageLoad(
            busiest * self._mac_s,
            sum(read for _, read, _ in works[1:]),
            sum(made for _, _, made in works[1:]),
            self._whole_bytes[first] if first else 0,
            0 if end else self._whole_bytes[last + 1],
        )

    def _tails(self, last: int) -> tuple[int, frozenset[int]]:
        """The tail of all stages that end with piece ``last``, and the outputs of their bodies."""
        rows = self._rows
        tail = tail_of(rows, self._done[last + 1])
        handed = {t for t in self._crossing[last + 1] if rows.maker[t] >= 0}
        handed |= {read.tensor for task in bits_of(tail) for read in rows.reads[task]}
        return tail, frozenset(
            t for t in handed if rows.maker[t] >= 0 and not tail >> rows.maker[t] & 1
        )

    def _share(
        self, last: int, tails: int, sinks: frozenset[int], height: int, share: Range
    ) -> Mapping[int, tuple[int, int, int]]:
        """MACs, bytes read and bytes made of one share, by the stage's first piece."""
        rows, need = self._rows, dict[int, Range]()
        macs = made_bytes = 0
        works = {}
        for first in range(last, -1, -1):
            for task in reversed(list(bits_of(self._pieces[first] & ~tails))):
                for tensor in rows.makes[task]:
                    if tensor in sinks:
                        a, b = self._rows_of(tensor, height, share)
                        if a < b:
                            made_bytes += (b - a) * rows.row_bytes[tensor]
                            low, high = need.get(tensor, (a, b))
                            need[tensor] = (min(a, low), max(b, high))
                macs += spread(rows, task, need)
            read = sum(
                (need[t][1] - need[t][0]) * rows.row_bytes[t]
                for t in self._crossing[first]
                if t in need
            )
            works[first] = (macs, read, made_bytes)
        return works

    def _rows_of(self, tensor: int, height: int, share: Range) -> Range:
        rows, (a, b) = self._rows.rows[tensor], share
        if not self._rows.cuttable[self._rows.maker[tensor]]:
            return (0, rows) if a == 0 else (0, 0)
        return a * rows // height, b * rows // height
