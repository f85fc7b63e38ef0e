"""All settings of a user, with their defaults. Session and command line make an object of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coexec import arguments
from coexec.cache import Cache
from coexec.defaults import AUTO, MODE, WAITING, Mode, Waiting
from coexec.errors import UsageError
from coexec.plan.plan_file import PlanFile
from coexec.profiling.activity import Quiet

if TYPE_CHECKING:  # importing ONNX takes longer than starting from the cache
    from coexec.profiling.profiler import Effort

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Settings for planning and running a model. Every value is checked when an object is made.

    Raises:
        UsageError: a value makes no sense. Whether the named devices, planners and options exist
            is checked later, when they are used.
    """

    devices: Sequence[str] | None = None
    """Names as in `coexec.engines.names`; None: for "auto" all devices of the machine, for other
    planners every cluster of equal CPU cores."""
    planner: str = AUTO
    """A name in `coexec.PLANNERS`, or "auto"."""
    plan: PlanFile | None = None
    """An existing plan, used instead of a planner. Unless these settings name devices and shapes,
    those of the plan are used."""
    planner_options: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int] | int] = field(default_factory=dict)
    """Fixed shapes of inputs that are dynamic in the model: ``{"x": (1, 3, 224, 224)}``; or sizes
    by name of a dimension, in all inputs that have it: ``{"N": 1}``. Names of inputs come first."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fixed values of inputs: ``{"sr": 16000}``. They become constants and are folded."""
    without_passes: Sequence[str] = ()
    """Passes of `coexec.model.passes` that do not simplify the model."""
    examples: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Example inputs by name, to measure with; they fix shapes that are dynamic in the model."""
    assume: bool = False
    """Whether to find sizes for shapes that are still dynamic then, with a warning."""
    cache: Cache | Path | str | None = None
    """Cache of slow results, or its folder; None: the user's cache folder."""
    engine_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Options of each engine, by its name: ``{"opencl": {"precision": "fp16"}}``."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Devices by names of tasks; patterns such as "conv*" are allowed."""
    mode: Mode = MODE
    """Whether to minimise the latency of a request or to maximise requests per second."""
    waiting: Waiting = WAITING
    """Whether cores are kept awake while devices wait for each other, see `Executor`."""
    fresh: bool = False
    """Whether to measure and choose again, and replace the results in the cache."""
    background: bool | None = None
    """Whether to answer at once, with the engine's own session, while a plan is being made. None:
    for "auto", and for shapes that are first seen in a request."""
    replan: float | None = None
    """Make a new plan when a device differs from its profile by more than this share for some time.
    """
    pieces: bool = False
    """Whether to measure parts of tasks as well. Planners that divide tasks use these times in
    place of predictions."""
    effort: "Effort | None" = field(default=None, compare=False)
    """When to stop measuring."""
    progress: Callable[[str, int, int], None] | None = field(default=None, compare=False)
    """Called with the name of a step, the amount done, and the total; 0 if the total is unknown."""

    quiet: Quiet | None = field(default=None, compare=False)
    """Measure only while another process runs no request."""

    def __post_init__(self) -> None:
        devices, shapes = self.devices, self.shapes
        if self.plan is not None and devices is None:
            devices = self.plan.plan.requests or None  # a plan without tasks names no device
        if self.plan is not None:
            shapes = shapes or self.plan.shapes
        checked = {
            "devices": arguments.check_devices(devices),
            "planner_options": arguments.check_planner(self.planner, self.planner_options),
            "shapes": arguments.check_shapes(shapes),
            "values": arguments.check_values(self.values),
            "without_passes": arguments.check_without(self.without_passes),
            "cache": arguments.check_cache(self.cache),
            "engine_options": arguments.check_engine_options(self.engine_options),
            "pins": arguments.check_texts("pins", self.pins, "{'conv*': 'cpu:0'}"),
        }
        arguments.check_waiting(self.waiting)
        arguments.check_mode(self.mode, self.planner, AUTO)
        arguments.check_background(self.background)
        arguments.check_replan(self.replan)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._check_beside_plan()

    def _check_beside_plan(self) -> None:
        """Refuse settings for a planner if there is an existing plan, which cannot follow them."""
        planner_settings = {
            f"planner={self.planner!r}": self.planner != AUTO,
            f"planner_options={self.planner_options}": bool(self.planner_options),
            f"pins={self.pins}": bool(self.pins),
            f"mode={self.mode!r}": self.mode != "latency",
        }
        beside = [text for text, is_set in planner_settings.items() if is_set]
        if self.plan is not None and beside:
            raise UsageError(
                f"{self.plan.title} is made already, and {beside[0]} tells a planner "
                f"how to make one; leave one of the two out"
            )
