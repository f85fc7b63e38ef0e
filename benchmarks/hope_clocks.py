"""Do gains persist when one processor is slower? On this machine, as the paper's Fig. 5 on a phone.

The first device of each pair is slowed (`slow_device`), as by a low clock. Its profile is
multiplied by the measured factor for the whole network on this device alone. Planners use this
profile, and their plans run on the slow device and the second device.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from common import in_turns
from contest import Contest, accuracy
from hope_here import Pair, pairs
from hope_phones import PAPER_CLOCKS
from hope_tables import PLANNED, Row, Tables, all_tried, by_requests, head, saved_by_hope, source_of
from slow_device import slowed

from coexec.costs.table import CostTable
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice
from coexec.hardware.hardware import Place
from coexec.model.inputs import random_inputs
from coexec.runtime.executor import Executor
from coexec.selection.planning_context import PlanningContext, make_plan
from coexec.selection.race import ratio
from coexec.settings import Settings

SHARES = (0.32, 0.84, 1.0)
"""Shares of the full speed: the paper's clocks over the highest of these clocks."""
PLANNERS = tuple(name for name in PLANNED if name not in ("heft", "anneal", "cpsat"))
"""The planners of the paper."""
_CALIBRATION_ROUNDS = 10


def rows(models: Sequence[str], options: Any) -> Iterator[list[Row]]:
    """The rows of each model, pair and share, as soon as they are measured."""
    for platform, names in pairs(options.pairs).items():
        for model in models:
            for share in options.shares:
                label = f"{platform}, {names[0]} at {share:.0%}"
                compare = partial(_compare, label, names, model, share, options)
                yield all_tried(head(label, model, "-"), label, compare)


def _compare(label: str, names: Pair, model: str, share: float, options: Any) -> list[Row]:
    fresh = options.fresh and share == options.shares[0]
    work = PlanningContext(
        source_of(model), Settings(devices=names, cache=options.cache, fresh=fresh)
    )
    first, *other_devices = work.devices
    with slowed(first.engine, share, options.slow_by) as slow:
        devices = (OpenDevice.of(slow), *other_devices)
        factor = slowdown(work, slow)
        cost = slowed_costs(work.measured[0], slow.place, factor)
        with Contest(
            label, model, work, cost=cost, devices=devices, limit_s=options.time_limit
        ) as contest:
            for device in work.names:
                contest.planned(device, "single", device=device)
            for planner in PLANNERS:
                contest.planned(planner)
            return [row | {"slowdown": factor} for row in contest.timed(options.rounds)]


def slowdown(work: PlanningContext, slow: OpenEngine) -> float:
    """The time of the whole network on the slow device over its time on the real device.

    The median of the rounds, so that a disturbance of one round has no effect. The time of a round
    is the mean of its runs, because a quota stops only some of the runs.
    """
    cost, system = work.measured
    feeds = random_inputs(work.model.graph)
    plan = make_plan("single", {"device": slow.place.device}, work.model.graph, cost, system)
    usual_plan = work.prepared(plan)
    slow_executor = Executor(usual_plan.compiled, [OpenDevice.of(slow)])
    with work.start(usual_plan) as usual, slow_executor as slower:
        runs = {"usual": partial(usual.run, feeds), "slow": partial(slower.run, feeds)}
        outcome = in_turns(runs, _CALIBRATION_ROUNDS, ["loop"])
    slow_s, usual_s = (
        [statistics.fmean(lap.loop) for lap in outcome.laps[name]] for name in ("slow", "usual")
    )
    return ratio(slow_s, usual_s)


def slowed_costs(cost: CostTable, place: Place, factor: float) -> CostTable:
    """``cost`` with all times at ``place`` multiplied by ``factor``."""
    tasks_s = {task: seconds * factor for task, seconds in cost.tasks_s[place].items()}
    launches_s = {**cost.launches_s, place: cost.launch_s(place) * factor}
    return replace(cost, tasks_s={**cost.tasks_s, place: tasks_s}, launches_s=launches_s)


def tables(found: Sequence[Row]) -> Tables:
    platforms = list(dict.fromkeys(row["platform"] for row in found))
    for requests, timed in by_requests(found):
        yield (
            f"latency saved, %, mean of the models, one device slow, {requests}: measured / "
            f"paper's phone",
            [_saved([row for row in timed if row["platform"] == name], name) for name in platforms],
        )
    yield "simulated / measured in a loop, one device slow", accuracy(found)


def _saved(own: Sequence[Row], platform: str) -> Row:
    highest = max(PAPER_CLOCKS)
    by_share = {f"{hertz / highest:.0%}": percents for hertz, percents in PAPER_CLOCKS.items()}
    paper = by_share.get(platform.rpartition(" ")[2], (None, None))
    slowdowns = [row["slowdown"] for row in own if "slowdown" in row]
    cells: Row = {"devices": platform}
    cells["times slower"] = f"{statistics.median(slowdowns):.2f}" if slowdowns else "-"
    return cells | saved_by_hope(own, paper)
