"""The numbers by which planner "auto" chooses, in one place.

A rule is a limit, a share or a number of rounds. `Settings` carry the rules to every step of a
choice, also into other processes. The cached choice of other rules is not used.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from coexec.errors import UsageError, unknown_option

BUSY = 0.1
"""Share of the processor time that other programs may use. A daemon or an editor uses a few
hundredths; a program that computes uses at least the share of one core."""
STOLEN = 0.02
"""Share of the processor time taken by a host above which measurements are doubtful. Below, almost
nothing was delayed by the host."""

_Figures = Literal["both", "paced", "loop"]
_OPTIONS = ("planners", "shortlist", "requests", "seconds")
"""The rules that users set, as options of planner "auto"."""


@dataclass(frozen=True)
class Rules:
    """The rules of a choice."""

    planners: str = "hope_greedy,heft,anneal,codl"
    """Planners for configurations of several devices, comma-separated."""
    shortlist: int = 5
    """Number of plans for several devices that run."""
    requests: _Figures = "both"
    """The figure that decides: "paced" or "loop". "both": "paced" decides, and by "loop" a plan may
    not be slower."""
    seconds: float = 60.0
    """Time limit of a choice."""
    further_engines: bool = True
    """Whether engines other than the first one of a processor are considered."""
    worth_trying: float = 1.25
    """Predicted time over the best prediction. A plan above this ratio does not run: predictions
    are not that wrong."""
    few_cores: int = 2
    """Largest number of cores on which all configurations are profiled: there are at most two of
    them for each set of engines."""
    most_beside: int = 4
    """Largest number of clusters of CPU cores that are tried together with a GPU or an NPU: the
    time of planners grows with a power of the number of devices."""
    most_profiled: int = 6
    """Largest number of configurations of several devices that are profiled, on more than
    `few_cores`. On 16 cores, a choice has time for three or four of them; a choice with more time,
    or with profiles of earlier models, for a few more."""
    worth_profiling: float = 2.0
    """Expected time over the best expectation. A configuration above this ratio is not profiled:
    expectations are hardly more wrong than that."""
    quick_devices: int = 4
    """Largest number of devices for which a planner starts, whatever time it takes. For more
    devices it starts only if it is expected to end in time."""
    planning_share: float = 0.6
    """Share of the time limit, without what single devices took, for profiles and plans.
    Configurations left by then are not tried."""
    racing_share: float = 0.9
    """Share of the time limit at which races end. The comparison with ONNX Runtime follows."""
    race_s: float = 3.0
    """Seconds for the race of a plan with the reference, if the least number of rounds takes no
    longer."""
    rounds: tuple[int, int] = (5, 40)
    """Least and largest number of rounds of such a race. A plan that is faster in fewer rounds is
    in doubt, and does not answer."""
    starts: int = 2
    """Number of races that a plan needs, each with a new start of both. A session that is made
    again may take a tenth more or less as long as it lives."""
    cut_rounds: int = 2
    """Number of rounds after which a plan that was slower in all of them is out."""
    memory_share: float = 0.5
    """Share of main memory that both plans of a race may need for weights and tensors."""
    deciding_rounds: float = 0.75
    """Share of the rounds in which a comparison has to hold: for a large network there are few
    rounds, and their medians may be off by a percent."""
    clearly_faster: float = 0.7
    """A race ends after the least number of rounds if a plan took less than this factor of the time
    of the reference in all of them, by both figures."""
    out_of_race: float = 1.02
    """A plan that takes more than this factor of the best time in all rounds is out."""
    gain: float = 0.97
    """A plan for several devices has to take less than this share of the time of the reference, a
    single device."""
    other_gain: float = 0.95
    """The same for GPUs and for further engines of CPU cores: they start more slowly, and their
    results differ in the last digits."""
    stolen_factor: float = 2.0
    """Additional gain that a plan needs on a virtual machine: this factor times the share of
    processor time that the host took. The devices of a plan wait for each other, so one stopped
    core delays all of them, whereas threads that are not bound to a core move to a free one. A race
    of a few seconds says little about the next minute: where the host took 15 %, a plan that took
    0.9 of the single device's time in the race took 1.3 of it afterwards."""
    not_slower: float = 1.01
    """Largest ratio that counts as equally fast, by the figure that does not decide."""
    parallel_rounds: int = 5
    """Number of rounds of a race in mode "throughput"."""
    parallel_turn_s: float = 0.6
    """Seconds in which threads send requests in one turn of such a race."""
    parallel_gain: float = 1.03
    """Requests per second, divided by those of the reference; below, the reference is kept."""
    most_idle_passes: int = 3
    """A choice is final after this many passes in a row that have settled no candidate."""
    lead: float = 1.03
    """A plan replaces a chosen one if the chosen one takes more than this factor of its time."""
    busy: float = BUSY
    """Share of the processor time of other programs above which a plan needs an additional gain,
    and a further pass races it again."""
    busy_factor: float = 2.0
    """The additional gain: this factor times the share of other programs. They delay both rivals,
    but not alike, and they may end. Where they take a sixth, a plan at 0.5 is taken, one at 0.7 is
    not; where they take half, none is."""
    stolen: float = STOLEN
    """Share of the processor time taken by the host above which a plan needs twice the rounds."""

    def enough_rounds(self, count: int) -> int:
        """Number of rounds, of ``count``, in which a comparison has to hold."""
        return math.ceil(self.deciding_rounds * count)

    @property
    def planner_names(self) -> list[str]:
        return [name.strip() for name in str(self.planners).split(",")]

    def with_options(self, options: Mapping[str, Any]) -> "Rules":
        """These rules with the options of planner "auto" that a user sets. Whether the planners
        exist is checked by the chooser.

        Raises:
            UsageError: an option does not exist, or its value is not allowed.
        """
        for name in options:
            if name not in _OPTIONS:
                raise unknown_option("planner auto", name, _OPTIONS)
        rules = replace(self, **options)
        if not isinstance(rules.shortlist, int) or rules.shortlist < 1:
            raise UsageError(
                f"option shortlist of planner auto is {rules.shortlist!r}; it wants "
                f"a number from 1 on"
            )
        seconds: Any = rules.seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise UsageError(
                f"option seconds of planner auto is {seconds!r}; it is how long the "
                f"choice may take, a number above 0"
            )
        if rules.requests not in get_args(_Figures):
            raise UsageError(
                f"option requests of planner auto is {rules.requests!r}; it is one "
                f"of {', '.join(get_args(_Figures))}"
            )
        return rules


RULES = Rules()
_current: ContextVar[Rules] = ContextVar("rules", default=RULES)


def current_rules() -> Rules:
    """The rules that new `Settings` have."""
    return _current.get()


@contextmanager
def default_rules(rules: Rules) -> Iterator[None]:
    """Context in which new `Settings` have these rules: for tests and experiments."""
    token = _current.set(rules)
    try:
        yield
    finally:
        _current.reset(token)
