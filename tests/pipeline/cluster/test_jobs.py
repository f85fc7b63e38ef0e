"""What machines do with a frame by their jobs, in any order in which it may happen."""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.arrays import Array
from coexec.engines.detect import usable_cores
from coexec.errors import ExecutionError
from coexec.graph.region import Region
from coexec.model.inputs import random_inputs
from coexec.model.model import Model
from coexec.model.reference_session import plain_session
from coexec.pipeline.cluster.jobs import FRAME, MachineJob, jobs_of
from coexec.pipeline.cluster.shares import FrameParts, OpenShares, ShareModels
from coexec.pipeline.plan.flow import Computation
from coexec.pipeline.plan.plan import PipelinePlan
from tests.helpers.examples import scaled
from tests.helpers.network_cases import networks
from tests.helpers.pipeline_cases import pipeline_plans

MACHINES = ["A", "B", "C"]


@given(networks(), st.data(), st.randoms(use_true_random=False))
@settings(max_examples=scaled(15), deadline=None)
def test_random_plans_compute_what_the_whole_model_computes(
    model: Model, data: st.DataObject, order: random.Random
) -> None:
    plan = data.draw(pipeline_plans(model.graph, MACHINES))
    feeds = random_inputs(model.graph)
    outputs = play(model, plan, feeds, order)
    session = plain_session(model.source, 1)
    names = [output.name for output in session.get_outputs()]
    for name, wanted in zip(names, session.run(names, dict(feeds)), strict=True):
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-4, atol=1e-5)


def play(
    model: Model, plan: PipelinePlan, feeds: Mapping[str, Array], order: random.Random
) -> dict[str, Array]:
    """The outputs of a frame if what can happen happens in a random order."""
    jobs, strips = jobs_of(plan, model.graph)
    models = ShareModels(model)
    with ExitStack() as cleanup:
        shares = OpenShares([f"cpu:{min(usable_cores())}"], "single", None, cleanup)
        own = {key: models.of(strip) for key, strip in strips.items()}
        for share in own.values():
            shares.keep(models.weights(shares.lacks(list(share.weights))))
        shares.open(1, own)
        cleanup.callback(shares.close_all)
        parts = {name: FrameParts() for name in jobs}
        done: dict[str, set[int]] = {name: set() for name in jobs}
        for name, job in jobs.items():
            if FRAME in job.receives:
                taken = job.receives[FRAME]
                parts[name].put(taken, [feeds[tensor] for tensor, _ in taken])
                done[name].add(FRAME)
        while ready := list(startable(jobs, done)):
            name, step = order.choice(ready)
            done[name].add(step)
            what = jobs[name].steps[step].what
            if isinstance(what, Computation):
                parts[name].put(what.strip.writes, shares.run(1, what, parts[name]))
            else:
                sent = [parts[name].get(*part) for part in what.parts]
                assert sum(array.nbytes for array in sent) == what.size_bytes
                parts[what.target].put(jobs[what.target].receives[step], sent)
                done[what.target].add(step)
    last = plan.stages[-1].leader
    assert done[last].issuperset(jobs[last].answers_after)
    assert all(job.steps.keys() <= done[name] for name, job in jobs.items())
    return {tensor: parts[last].get(tensor, whole) for tensor, whole in jobs[last].outputs}


def startable(
    jobs: Mapping[str, MachineJob], done: Mapping[str, set[int]]
) -> Iterator[tuple[str, int]]:
    for name, job in jobs.items():
        for step, action in job.steps.items():
            if step not in done[name] and done[name].issuperset(action.after):
                yield name, step


@given(st.data())
@settings(max_examples=scaled(25), deadline=None)
def test_parts_are_stitched_and_cut(data: st.DataObject) -> None:
    whole = np.arange(2 * 9 * 5, dtype=np.float32).reshape(2, 9, 5)
    cuts = sorted({0, 9, *data.draw(st.lists(st.integers(1, 8), max_size=3))})
    parts = FrameParts()
    for a, b in pairwise(cuts):
        region = Region((0, max(0, a - 1), 0), (2, b, 5))  # they may overlap
        parts.put([("t", region)], [whole[region.slices]])
    start = data.draw(st.integers(0, 8))
    wanted = Region((0, start, 1), (2, data.draw(st.integers(start + 1, 9)), 4))
    found = parts.get("t", wanted)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, whole[wanted.slices])


def test_what_is_not_there_is_said() -> None:
    parts = FrameParts()
    parts.put([("t", Region((0,), (2,)))], [np.zeros(2, np.float32)])
    with pytest.raises(ExecutionError, match=r"t\[2:4\] is not there"):
        parts.get("t", Region((0,), (4,)))
    with pytest.raises(ExecutionError, match=r"u.* is not there"):
        parts.get("u", Region((0,), (4,)))
    with pytest.raises(ExecutionError, match="arrived with shape"):
        parts.put([("t", Region((0,), (2,)))], [np.zeros(3, np.float32)])
