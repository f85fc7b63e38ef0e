"""What is logged of planning, and what happens to tasks that an engine does not compile."""

import logging
import math
from pathlib import Path

import pytest

from coexec.engines.base import Program
from coexec.engines.detect import usable_cores
from coexec.errors import DeviceError, UsageError
from coexec.lowering.module import Module
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepare import prepare
from coexec.settings import Settings
from tests.helpers.small_models import branches

CPU = f"cpu:{usable_cores()[0]}"


def test_begin_and_end_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "coexec"):
        prepare(branches(), Settings([CPU], "single", cache=tmp_path))
    begins, ends = (record.message for record in caplog.records)
    assert begins == "the model: planning with single begins"
    assert ends.startswith("the model: planned with single in ") and ends.endswith(f"on {CPU}")


def test_a_refusal_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings([CPU], "fast", cache=tmp_path)
    with caplog.at_level(logging.INFO, "coexec"), pytest.raises(UsageError) as caught:
        prepare(branches(), settings)
    assert caplog.records[-1].message == f"the model: no plan by fast: {caught.value}"


def test_a_task_that_does_not_compile_costs_that_task_and_not_the_plan(tmp_path: Path) -> None:
    other = "reference:0"
    work = PlanningContext(branches(), Settings([CPU, other], cache=tmp_path))
    engine = work.devices[1].engine
    compile_any = engine.compile

    def compile_no_pool(module: Module) -> Program:
        if b"MaxPool" in module.proto:
            raise DeviceError(f"{engine.place} cannot convert MaxPool")
        return compile_any(module)

    engine.compile = compile_no_pool  # type: ignore[method-assign]
    prepared = work.prepared_by("heft", {})
    (pool,) = (task for task in prepared.graph.tasks if task.kind == "MaxPool")
    assert "cannot convert" in str(engine.refusal(pool, prepared.graph.tensors))
    seconds = prepared.cost.tasks_s[engine.place]
    assert [name for name, each in seconds.items() if each == math.inf] == [pool.name]
    assert {place for task, place in prepared.plan.place_of.items() if task.task == pool.name} == {
        work.devices[0].engine.place
    }
    with work.start(prepared) as runner:
        assert runner.run(next(work.model.candidates()))
