"""Which runs of a sweep count."""

from collections.abc import Callable, Iterator

import pytest

from coexec.cache import Cache
from coexec.engines.opened import OpenDevice
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.plan.derive import stepwise
from coexec.profiling.processors import ProcessorTime
from coexec.profiling.sweep import SweepItem, sweep
from coexec.runtime.compiler import Compiler
from coexec.settings import Effort
from tests.helpers.clocked import Clocked
from tests.helpers.small_models import branches

RUNS = 6


def clock(stolen: set[int]) -> Callable[[], ProcessorTime]:
    """The processors compute a second in each run, of which the host takes a tenth in some."""

    def times() -> Iterator[ProcessorTime]:
        now = ProcessorTime()
        for run in range(RUNS):
            yield now
            now = now.plus(ProcessorTime(0.9, 0.1) if run in stolen else ProcessorTime(1.0, 0.0))
            yield now

    told = times()
    return lambda: next(told)


@pytest.mark.parametrize(
    ("stolen", "kept"),
    [(set(), RUNS), ({0, 3}, RUNS - 2), ({0, 1, 2, 3}, RUNS), (set(range(RUNS)), RUNS)],
    ids=["none", "two", "all but two", "all"],
)
def test_runs_of_which_the_host_took_a_part_count_only_if_others_are_too_few(
    stolen: set[int], kept: int, cache: Cache
) -> None:
    model, device = load(branches()), OpenDevice.of(Clocked())
    tasks = model.graph.tasks
    schedule = stepwise(model.graph, {task.name: device.engine.place for task in tasks})
    part = SweepItem(tasks, Compiler(model, cache).compile(schedule, [device]))
    effort = Effort(warm_up=0, least=3, most=RUNS, stable=-1.0)
    told: list[int] = []
    runs = sweep(
        part,
        [device],
        random_inputs(model.graph),
        effort,
        lambda done, total: told.append(done),
        processors=clock(stolen),
    )
    assert len(runs) == kept
    assert all(len(run.seconds) == len(tasks) for run in runs)
    assert told == [*range(1, RUNS + 1), RUNS]
