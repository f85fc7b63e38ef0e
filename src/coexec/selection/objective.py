"""The goal of a choice: the measurement of a turn, the figure that ranks plans, and the gain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from coexec.arrays import Array
from coexec.rules import Rules
from coexec.runtime.runner import Runner
from coexec.selection.decision import Requests
from coexec.selection.race import Lap, turn
from coexec.selection.throughput import requests_per_s
from coexec.settings import Mode

__all__ = ["Objective", "objective_of", "warm_turn"]

_WARM_UP = 2


@dataclass(frozen=True)
class Objective:
    """The goal of a choice in numbers. Ratios are times over the time of the reference."""

    mode: Mode
    figure: Requests
    """The figure that ranks plans."""
    guard: Requests | None
    """The figure by which a plan may not be slower; None: there is none."""
    gain: float
    """Ratio below which a plan for CPU cores with their first engine is taken."""
    other_gain: float
    """The same for a plan with a GPU or a further engine."""
    stolen_factor: float
    """Factor of the share of stolen processor time, by which these ratios have to be lower."""
    rounds: tuple[int, int]
    """Least and largest number of rounds."""
    drops: bool
    """Whether clearly slower plans leave the race."""


def objective_of(mode: Mode, rules: Rules) -> Objective:
    """The objective of mode "latency" or "throughput".

    In mode "throughput" devices do not wait for each other, so that time which the host takes
    delays all plans alike.
    """
    if mode == "throughput":
        gain, count = 1 / rules.parallel_gain, rules.parallel_rounds
        return Objective(mode, "parallel", None, gain, gain, 0.0, (count, count), drops=False)
    return Objective(
        mode,
        "loop" if rules.requests == "loop" else "paced",
        "loop" if rules.requests == "both" else None,
        rules.gain,
        rules.other_gain,
        rules.stolen_factor,
        rules.rounds,
        drops=True,
    )


def warm_turn(
    runner: Runner, feeds: Mapping[str, Array], mode: Mode, rules: Rules
) -> Callable[[], Lap]:
    """Run a plan until it is warm, and return a function that runs a turn of it.

    Raises:
        CoexecError: a request failed.
    """
    if mode == "throughput":
        requests_per_s(runner, feeds, 0.0)
        return partial(_parallel_turn, runner, feeds, rules.parallel_turn_s)
    for _ in range(_WARM_UP):
        runner.run(feeds)
    return partial(turn, partial(runner.run, feeds))


def _parallel_turn(runner: Runner, feeds: Mapping[str, Array], seconds: float) -> Lap:
    return Lap(parallel=(1 / requests_per_s(runner, feeds, seconds),))
