"""A plan that takes part in a race in a process of its own.

Some engines have one set of threads per process. Two plans with these threads on different cores
cannot be open in the same process. So another process starts the second plan from the cache.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coexec.arrays import Array
from coexec.errors import CoexecError
from coexec.plan.plan import Plan
from coexec.processes import Child, EndedError, Parent
from coexec.selection.planning_context import PlanningContext
from coexec.selection.race import Lap, warm_turn
from coexec.settings import Settings

_LIMIT_S = 10.0
"""Seconds in which the process has to end."""


class RivalProcess:
    """A plan that another process runs, turn by turn."""

    def __init__(self, work: PlanningContext, plan: Plan, feeds: Mapping[str, Array]) -> None:
        """Start the plan in a new process and run it until it is warm.

        Raises:
            CoexecError: the plan does not run there either.
        """
        self._child = Child("coexec.selection.candidate_process:serve", "runs this plan")
        settings = replace(work.settings, cache=work.cache.root, progress=None, fresh=False)
        try:
            self._child.ask((work.user_model.source, settings, plan.to_json(), dict(feeds)))
        except BaseException:
            self._child.close()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    def turn(self) -> Lap:
        """Run one turn of a race, timed in the other process.

        Raises:
            CoexecError: the plan failed, or the process has ended.
        """
        lap: Lap = self._child.ask(True)
        return lap

    def close(self) -> None:
        """End the process, if it can, in the usual way: a driver may have files to remove."""
        with contextlib.suppress(EndedError, TimeoutError):
            self._child.send(False)
            self._child.wait(_LIMIT_S)
        self._child.close()

    def __enter__(self) -> "RivalProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(parent: Parent) -> None:
    """Start the plan that the parent sends, then run a turn for each True that it sends."""
    source, settings, plan, feeds = parent.receive()
    executor = _started(source, settings, Plan.from_json(plan))
    turn = warm_turn(executor, feeds, settings.mode, settings.rules)
    parent.send(True)
    with executor:
        while parent.receive():
            try:
                parent.send(turn())
            except CoexecError as error:
                parent.send(error)


def _started(source: Any, settings: Settings, plan: Plan) -> Any:
    work = PlanningContext(source, settings)
    return work.start(work.prepared(plan))
