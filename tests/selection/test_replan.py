"""A session that notices that a device has become slower, and plans anew."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coexec.engines.detect import usable_cores
from coexec.model.difference import worst_difference
from coexec.model.reference_session import plain_session
from coexec.selection.planning_context import PlanningContext
from coexec.selection.replan import Replanner
from coexec.session import InferenceSession
from coexec.settings import Effort, Settings
from coexec.timing.trace import Trace
from tests.helpers.small_models import branches

CORES = usable_cores()[:2]
CPUS = [f"cpu:{core}" for core in CORES]
pytestmark = [
    pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only"),
]


def slowed(work: PlanningContext, replanner: Replanner, device: str, factor: float) -> Trace:
    """A run as predicted, but for one device."""
    from coexec.timing.simulate import simulate

    schedule = work.schedule(replanner.plan)
    trace = simulate(schedule, replanner.cost.base, replanner.system)
    spans: Sequence = [  # type: ignore[type-arg]
        replace(s, end_s=s.start_s + s.duration_s * (factor if s.device == device else 1.0))
        for s in trace.spans
    ]
    return replace(trace, spans=tuple(spans))


def test_a_lasting_drift_moves_work_away(tmp_path: Path) -> None:
    work = PlanningContext(
        branches(4), Settings(devices=CPUS, cache=tmp_path, effort=Effort(1, 2, 2))
    )
    plan = work.plan("heft")
    prepared = work.prepared(plan)
    replanner = Replanner(prepared, "heft")
    busiest = max(CPUS, key=lambda name: len(plan.order.get(name, ())))
    for _ in range(30):
        assert replanner.observe(slowed(work, replanner, busiest, 1.0), prepared) is None
    new, seen = None, 0
    while new is None and seen < 80:
        new = replanner.observe(slowed(work, replanner, busiest, 8.0), prepared)
        seen += 1
    assert new is not None
    assert seen >= 8, "one disturbance is not a drift"
    before, after = (len(p.order.get(busiest, ())) for p in (plan, new.plan))
    assert after < before


def test_a_session_that_watches_computes_the_same(tmp_path: Path) -> None:
    model = branches()
    with InferenceSession(
        model, devices=CPUS, planner="heft", cache=tmp_path, replan=1e-9
    ) as session:
        feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
        expected = plain_session(model).run(None, feeds)
        for _ in range(40):  # plans change under way
            for a, b in zip(session.run(None, feeds), expected, strict=True):
                assert worst_difference(a, b) < 1e-5
