"""All choices that a user has, with their defaults: what session and command line build."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coexec import arguments
from coexec.cache import Cache
from coexec.defaults import AUTO, MODE, WAITING, Mode, Waiting
from coexec.errors import UsageError
from coexec.plans.plan_file import PlanFile
from coexec.profiling.traffic import Quiet

if TYPE_CHECKING:  # importing ONNX takes longer than starting from the cache
    from coexec.profiling.profiler import Effort

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """How a model is to be run. Every value is checked when an object is made.

    Raises:
        UsageError: a value that makes no sense. Whether devices, planners and engines have what
            is named, they say themselves when they are opened or asked.
    """

    devices: Sequence[str] | None = None
    """Names as in `coexec.engines.names`; None: all that the machine has for "auto", else every
    cluster of equal CPU cores."""
    planner: str = AUTO
    """A name in `coexec.PLANNERS`, or "auto"."""
    plan: PlanFile | None = None
    """A plan that was made before, in the place of a planner's. Unless others are named, its
    devices and shapes are those of these settings."""
    planner_options: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int] | int] = field(default_factory=dict)
    """Fixed shapes of inputs that the model leaves dynamic: ``{"x": (1, 3, 224, 224)}``; or sizes
    by name of a dimension, in all inputs that have it: ``{"N": 1}``. Inputs' names come first."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fixed values of inputs: ``{"sr": 16000}``. They are no inputs any more, and fold."""
    examples: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Inputs that suit the model, by name, to measure with; they fix shapes that it leaves open."""
    assume: bool = False
    """Find sizes for what is open then, and warn of them."""
    cache: Cache | Path | str | None = None
    """Where to keep what takes long; None: the user's cache folder."""
    engine_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By engine, its own options: ``{"opencl": {"precision": "fp16"}}``."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Devices by names of tasks, patterns such as "conv*" allowed."""
    mode: Mode = MODE
    """One request as soon as possible, or as many as possible a second."""
    waiting: Waiting = WAITING
    """Whether cores are kept awake while devices wait for each other, see `Executor`."""
    fresh: bool = False
    """Measure and decide anew what is cached already."""
    background: bool | None = None
    """Answer at once, from the engine's own session, while the plan is still being made. None: for
    "auto", and for shapes that come with a request."""
    replan: float | None = None
    """Plan anew when a device is off its profile by more than this share for some time."""
    pieces: bool = False
    """Measure parts of tasks, too, which planners that divide tasks take in place of predicted
    ones."""
    effort: "Effort | None" = field(default=None, compare=False)
    """When to stop measuring."""
    progress: Callable[[str, int, int], None] | None = field(default=None, compare=False)
    """Told what is done, how much of it, and how much there is; 0 where that is not known."""

    quiet: Quiet | None = field(default=None, compare=False)
    """Measure only while another process is not asked for anything."""

    def __post_init__(self) -> None:
        devices, shapes = self.devices, self.shapes
        if self.plan is not None and devices is None:
            devices = self.plan.plan.requests or None  # a plan of no tasks names no device
        if self.plan is not None:
            shapes = shapes or self.plan.shapes
        checked = {
            "devices": arguments.check_devices(devices),
            "planner_options": arguments.check_planner(self.planner, self.planner_options),
            "shapes": arguments.check_shapes(shapes),
            "values": arguments.check_values(self.values),
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
        """Refuse what a planner is told beside a plan, which follows none of it any more."""
        told = {
            f"planner={self.planner!r}": self.planner != AUTO,
            f"planner_options={self.planner_options}": bool(self.planner_options),
            f"pins={self.pins}": bool(self.pins),
            f"mode={self.mode!r}": self.mode != "latency",
        }
        beside = [text for text, given in told.items() if given]
        if self.plan is not None and beside:
            raise UsageError(f"{self.plan.title} is made already, and {beside[0]} tells a planner "
                             f"how to make one; leave one of the two out")  # fmt: skip
