"""Settings of the user, each declared once: type, default, meaning, check, and option.

The fields of `Settings` are the keywords of `coexec.InferenceSession`. The command line makes its
options from the same declarations. Nothing slow is imported here, because the help of a verb needs
neither engines nor NumPy.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from coexec.errors import UsageError
from coexec.precision import FLOAT32, PRECISIONS, Precision
from coexec.progress import ReportProgress
from coexec.rules import Rules, current_rules
from coexec.units import parse_bytes

if TYPE_CHECKING:
    from coexec.cache import Cache
    from coexec.plan.plan_file import PlanFile
    from coexec.profiling.activity import Quiet

AUTO = "auto"
"""The planner that tries several configurations of the devices with several planners."""
NONE = "none"
"""The planner that plans nothing: a session is ONNX Runtime's own."""
Mode = Literal["latency", "throughput"]
MODE: Mode = "latency"
"""The goal: the shortest time of one request, or the most requests per second."""
Waiting = Literal["passive", "active"]
WAITING: Waiting = "active"
"""Whether a device that waits for another one during a run soon lets its core halt (passive), or
keeps it busy for up to a millisecond (active)."""

KEYWORDS = (
    "devices",
    "planner",
    "plan",
    "planner_options",
    "shapes",
    "values",
    "cache",
    "engine_options",
    "background",
    "pins",
    "replan",
    "mode",
    "waiting",
    "memory_limit",
    "strict",
    "precision",
    "tolerance",
)
"""Settings that are keywords of `coexec.InferenceSession`. The others are for the command line and
for processes that plan in the background."""


def is_off() -> bool:
    """Whether the environment switches planning off, by ``COEXEC=off``, for all sessions."""
    return os.environ.get("COEXEC", "").strip().lower() == "off"


@dataclass(frozen=True)
class Option:
    """The option of the command line for a setting."""

    flag: str
    help: str
    kind: Any = str
    """Type of a value: str, bool, Path, or a Literal."""
    repeats: bool = False
    """Whether the option may be repeated; its value is then a list of texts."""


def _about(
    check: Callable[[Any], Any] | None = None, option: Option | None = None
) -> Mapping[str, Any]:
    """Facts about a setting, for its field.

    Args:
        check: returns the value in the form that the program uses, or raises UsageError.
        option: the option of the command line; None: there is none.
    """
    return {"check": check, "option": option}


def _check_devices(devices: Any) -> list[str] | None:
    if devices is None:
        return None
    is_list = isinstance(devices, Sequence) and len(devices) > 0
    if not is_list or any(not isinstance(name, str) for name in devices):
        raise UsageError(
            f"devices={devices!r} names no devices; write for example "
            f"['cpu:0', 'cpu:1'], or leave it out"
        )
    return list(devices)


def _check_planner(planner: Any) -> str:
    if not isinstance(planner, str):
        raise UsageError(
            f"planner={planner!r} is a {type(planner).__name__}; give a name, such as 'auto'"
        )
    return planner


def _check_planner_options(options: Any) -> dict[str, Any]:
    return _mapping("planner_options", options, "{'seed': 1}")


def check_shapes(shapes: Any) -> dict[str, tuple[int, ...] | int]:
    """Shapes by input name and sizes by name of a dimension, as Python integers.

    Raises:
        UsageError: a shape is no sequence of integers.
    """
    checked: dict[str, tuple[int, ...] | int] = {}
    for name, shape in _mapping("shapes", shapes, "{'x': (1, 3, 224, 224)}").items():
        if _is_integer(shape):
            checked[name] = int(shape)
            continue
        is_list = isinstance(shape, Sequence) or getattr(shape, "ndim", 0) == 1
        dims: list[Any] = list(shape) if is_list else [None]
        if isinstance(shape, str) or any(not _is_integer(d) for d in dims):
            raise UsageError(
                f"shapes[{name!r}] is {shape!r}; give a tuple of integers, such as "
                f"(1, 3, 224, 224), or one for a dimension of that name"
            )
        checked[name] = tuple(int(d) for d in dims)
    return checked


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_values(values: Any) -> dict[str, Any]:
    """Values by input name, as Python scalars or nested lists, whose text identifies the value.

    Raises:
        UsageError: a value is neither a number nor a text nor an array of them.
    """
    checked = _mapping("values", values, "{'sr': 16000}")
    if not checked:
        return checked
    import numpy as np

    for name, value in checked.items():
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            array = np.asarray(None)
        if array.dtype.kind not in "biufUV":
            raise UsageError(
                f"values[{name!r}] is {' '.join(repr(value).split())[:80]}; give a "
                f"number, a text, or an array of them"
            )
        checked[name] = array.tolist()
    return checked


def _check_cache(cache: Any) -> Any:
    module = sys.modules.get("coexec.cache")  # a caller with an opened cache has imported it
    if cache is None or (module is not None and isinstance(cache, module.Cache)):
        return cache
    if not isinstance(cache, str | os.PathLike):
        raise UsageError(
            f"cache={cache!r} is a {type(cache).__name__}; give the path of a folder "
            f"or a coexec.Cache, or leave it out"
        )
    return check_path(cache, "cache")


def check_path(path: Any, what: str) -> Any:
    """A path that the operating system can take.

    Raises:
        UsageError: it is no text, or contains a zero character.
    """
    text = os.fspath(path)
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"{what} is {text!r}; give a text without a zero character")
    return path


def _check_engine_options(options: Any) -> dict[str, dict[str, str]]:
    """Whether an engine has these options is checked by the engine."""
    by_engine = _mapping("engine_options", options, "{'opencl': {'waiting': 'active'}}")
    return {
        engine: _texts(f"engine_options[{engine!r}]", texts, "{'waiting': 'active'}")
        for engine, texts in by_engine.items()
    }


def _check_pins(pins: Any) -> dict[str, str]:
    return _texts("pins", pins, "{'conv*': 'cpu:0'}")


def _texts(what: str, value: Any, example: str) -> dict[str, str]:
    """The argument named ``what``: a mapping from strings to strings."""
    texts = _mapping(what, value, example)
    for key, text in texts.items():
        if not isinstance(text, str):
            raise UsageError(f"{what}[{key!r}] is {text!r}; give a text, as in {what}={example}")
    return texts


def _mapping(what: str, value: Any, example: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or any(not isinstance(key, str) for key in value):
        raise UsageError(f"{what}={value!r}; give a dict by name, as in {what}={example}")
    return dict(value)


def _check_mode(mode: Any) -> Any:
    return _one_of("mode", mode, get_args(Mode))


def _check_waiting(waiting: Any) -> Any:
    return _one_of("waiting", waiting, get_args(Waiting))


def _one_of(what: str, value: Any, words: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in words:
        raise UsageError(f"{what} is {value!r}; it is {' or '.join(map(repr, words))}")
    return value


def _check_precision(precision: Any) -> Any:
    return _one_of("precision", precision, PRECISIONS)


def _check_tolerance(tolerance: Any) -> float | None:
    is_number = isinstance(tolerance, Real) and not isinstance(tolerance, bool)
    if tolerance is not None and not (is_number and 0 < tolerance < 1):
        raise UsageError(
            f"tolerance={tolerance!r}; give a part of the largest value of an output, such as "
            f"0.01, or leave it out"
        )
    return None if tolerance is None else float(tolerance)


def _check_background(background: Any) -> bool | None:
    return None if background is None else _truth("background", background)


def _check_strict(strict: Any) -> bool:
    return _truth("strict", strict)


def _truth(what: str, value: Any) -> bool:
    """A string is refused, because "no" would count as True."""
    is_numpy_bool = getattr(getattr(value, "dtype", None), "kind", "") == "b"
    if not isinstance(value, bool) and not is_numpy_bool:
        raise UsageError(f"{what}={value!r}; give True or False")
    return bool(value)


def _check_replan(replan: Any) -> float | None:
    is_number = isinstance(replan, Real) and not isinstance(replan, bool)
    if replan is not None and not (is_number and math.isfinite(replan) and replan > 0):
        raise UsageError(
            f"replan={replan!r}; give a share above 0, such as 0.25 for a quarter, or leave it out"
        )
    return None if replan is None else float(replan)


def _check_memory_limit(limit: Any) -> int | None:
    if isinstance(limit, str):
        try:
            limit = parse_bytes(limit)
        except UsageError as error:
            raise UsageError(f"memory_limit: {error}") from None
    if limit is not None and not (_is_integer(limit) and limit > 0):
        raise UsageError(f"memory_limit={limit!r}; give bytes, or a text such as '2GiB'")
    return None if limit is None else int(limit)


@dataclass(frozen=True, slots=True)
class Effort:
    """When a profile stops measuring the tasks of a device."""

    warm_up: int = 2
    least: int = 7
    most: int = 40
    stable: float = 0.01
    """Largest relative change of the median time of a whole run, from the first half of the runs to
    all runs."""
    budget_s: float = 20.0
    """Seconds for one device."""


@dataclass(frozen=True)
class Settings:
    """Settings for planning and running a model. Every value is checked when an object is made.

    Raises:
        UsageError: a value makes no sense. Whether the named devices, planners and options exist
            is checked later, when they are used.
    """

    devices: Sequence[str] | None = field(
        default=None,
        metadata=_about(
            check=_check_devices,
            option=Option("--devices", "For example cpu:0-3,cpu:4-7 or cpu:0,cpu:1/cpp."),
        ),
    )
    """Names as in `coexec.engines.names`; None: for "auto" all devices of the machine, for other
    planners every cluster of equal CPU cores."""
    planner: str = field(
        default=AUTO,
        metadata=_about(
            check=_check_planner,
            option=Option(
                "--planner", "What makes the plan; auto also chooses devices, by running plans."
            ),
        ),
    )
    """A name in `coexec.PLANNERS`, or "auto"."""
    plan: "PlanFile | None" = field(
        default=None,
        metadata=_about(
            option=Option(
                "--plan", "A plan made by coexec plan --output, in place of a planner's.", Path
            )
        ),
    )
    """An existing plan, used instead of a planner. Unless these settings name devices, shapes and a
    tolerance, those of the plan are used."""
    planner_options: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=_about(
            check=_check_planner_options,
            option=Option("--option", "NAME=VALUE for the planner; may be repeated.", repeats=True),
        ),
    )
    pins: Mapping[str, str] = field(
        default_factory=dict,
        metadata=_about(
            check=_check_pins,
            option=Option(
                "--pin",
                "TASK=DEVICE, patterns such as 'conv*=cpu:0' allowed; repeatable.",
                repeats=True,
            ),
        ),
    )
    """Devices by names of tasks; patterns such as "conv*" are allowed."""
    shapes: Mapping[str, Sequence[int] | int] = field(
        default_factory=dict,
        metadata=_about(
            check=check_shapes,
            option=Option(
                "--shape",
                "INPUT=1,3,224,224 fixes a dynamic shape, NAME=1 a symbolic dimension; repeatable.",
                repeats=True,
            ),
        ),
    )
    """Fixed shapes of inputs that are dynamic in the model: ``{"x": (1, 3, 224, 224)}``; or sizes
    by name of a dimension, in all inputs that have it: ``{"N": 1}``. Names of inputs come first."""
    values: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=_about(
            check=check_values,
            option=Option(
                "--value",
                "INPUT=16000 or INPUT=1,2,3 makes an input constant; repeatable.",
                repeats=True,
            ),
        ),
    )
    """Fixed values of inputs: ``{"sr": 16000}``. They become constants and are folded."""
    examples: Mapping[str, Any] = field(
        default_factory=dict,
        compare=False,
        metadata=_about(
            option=Option(
                "--inputs",
                "An .npz file of inputs to run with; they fix shapes that are open.",
                Path,
            )
        ),
    )
    """Example inputs by name, to measure with; they fix shapes that are dynamic in the model."""
    assume: bool = False
    """Whether to find sizes for shapes that are still dynamic then, with a warning."""
    fresh: bool = field(
        default=False, metadata=_about(option=Option("--fresh", "Measure everything again.", bool))
    )
    """Whether to measure and choose again, and replace the results in the cache."""
    pieces: bool = field(
        default=False,
        metadata=_about(
            option=Option(
                "--pieces", "Measure parts of tasks, too, for planners that divide.", bool
            )
        ),
    )
    """Whether to measure parts of tasks as well. Planners that divide tasks use these times in
    place of predictions."""
    engine_options: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict,
        metadata=_about(
            check=_check_engine_options,
            option=Option(
                "--engine",
                "ENGINE.OPTION=VALUE, for example opencl.waiting=active; repeatable.",
                repeats=True,
            ),
        ),
    )
    """Options of each engine, by its name: ``{"opencl": {"waiting": "active"}}``."""
    reference: str = ""
    """The user's own session, with which "auto" compares plans, by the engine of its execution
    provider and the number of its device: "ort-cuda:0". "": ONNX Runtime on all cores."""
    mode: Mode = field(
        default=MODE,
        metadata=_about(
            check=_check_mode,
            option=Option(
                "--mode", "One request as soon as possible, or as many as possible a second.", Mode
            ),
        ),
    )
    """Whether to minimise the latency of a request or to maximise requests per second."""
    precision: Precision = field(
        default=FLOAT32,
        metadata=_about(
            check=_check_precision,
            option=Option(
                "--precision",
                "The least precise arithmetic that a plan may use; auto takes what is fastest.",
                Precision,
            ),
        ),
    )
    """The least precise arithmetic that planner "auto" may use: it tries the engines in each
    precision that is allowed. A device whose name has a precision, "cpu:0/openvino:bf16", computes
    in this one in any case."""
    tolerance: float | None = field(
        default=None,
        metadata=_about(
            check=_check_tolerance,
            option=Option(
                "--tolerance",
                "Largest error of a lower precision, as a part of an output's largest value.",
                float,
            ),
        ),
    )
    """Largest difference from ONNX Runtime's outputs, as a part of their largest value, of a plan
    that computes in a lower precision than float32. None: a default for each precision."""
    waiting: Waiting = field(
        default=WAITING,
        metadata=_about(
            check=_check_waiting,
            option=Option(
                "--waiting",
                "A waiting device keeps its core busy for a millisecond, or soon lets it halt.",
                Waiting,
            ),
        ),
    )
    """Whether cores are kept awake while devices wait for each other, see `Executor`."""
    background: bool | None = field(default=None, metadata=_about(check=_check_background))
    """Whether to answer at once, with the engine's own session, while a plan is being made. None:
    for "auto", and for shapes that are first seen in a request."""
    strict: bool = field(default=False, metadata=_about(check=_check_strict))
    """Whether a session raises an error if its plan or export does not answer: this machine lacks a
    device or an engine of it, or its outputs differ. Else ONNX Runtime answers, with a warning."""
    replan: float | None = field(default=None, metadata=_about(check=_check_replan))
    """Make a new plan when a device differs from its profile by more than this share for some time.
    """
    memory_limit: int | None = field(
        default=None,
        metadata=_about(
            check=_check_memory_limit,
            option=Option(
                "--memory-limit",
                "Memory for planning, such as 2GiB; larger candidates are not tried.",
            ),
        ),
    )
    """Bytes, or a text such as "2GiB", that planning may use. None: half of main memory."""
    cache: "Cache | Path | str | None" = field(
        default=None,
        metadata=_about(
            check=_check_cache, option=Option("--cache", "Folder for profiles and plans.", Path)
        ),
    )
    """Cache of slow results, or its folder; None: the user's cache folder."""
    effort: Effort | None = field(default=None, compare=False)
    progress: ReportProgress | None = field(default=None, compare=False)
    quiet: "Quiet | None" = field(default=None, compare=False)
    """Measure only while another process runs no request."""
    rules: Rules = field(default_factory=current_rules, compare=False)
    """By which planner "auto" chooses. Its planner options are rules as well, and replace these."""

    def __post_init__(self) -> None:
        if self.plan is not None and self.devices is None:
            self._set("devices", self.plan.plan.requests or None)  # a plan may have no tasks
        if self.plan is not None and not self.shapes:
            self._set("shapes", self.plan.shapes)
        if self.plan is not None and self.tolerance is None:
            self._set("tolerance", self.plan.plan.provenance.options.get("tolerance"))
        for setting in fields(self):
            if (check := setting.metadata.get("check")) is not None:
                self._set(setting.name, check(getattr(self, setting.name)))
        if self.mode != MODE and self.planner != AUTO:
            raise UsageError(
                f"mode={self.mode!r} and planner={self.planner!r}: a planner lets all devices work "
                f"on one request; leave it out"
            )
        if self.precision != FLOAT32 and self.planner != AUTO:
            raise UsageError(
                f"precision={self.precision!r} and planner={self.planner!r}: only planner {AUTO!r} "
                f"chooses a precision; another one takes the devices as they are named, such as "
                f"cpu:0/openvino:{self.precision}"
            )
        self._check_beside_plan()

    @property
    def has_devices_of_plan(self) -> bool:
        """Whether the devices are those of an existing plan, and not the user's."""
        return self.plan is not None and tuple(self.devices or ()) == self.plan.plan.requests

    @property
    def keywords(self) -> Mapping[str, Any]:
        """The keywords of `coexec.InferenceSession` that have the meaning of these settings."""
        return {name: getattr(self, name) for name in KEYWORDS}

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the object is frozen once it is made

    def _check_beside_plan(self) -> None:
        """Refuse settings for a planner if there is an existing plan, which cannot follow them."""
        planner_settings = {
            f"planner={self.planner!r}": self.planner != AUTO,
            f"planner_options={self.planner_options}": bool(self.planner_options),
            f"pins={self.pins}": bool(self.pins),
            f"mode={self.mode!r}": self.mode != MODE,
            f"precision={self.precision!r}": self.precision != FLOAT32,
        }
        beside = [text for text, is_set in planner_settings.items() if is_set]
        if self.plan is not None and beside:
            raise UsageError(
                f"{self.plan.title} is made already, and {beside[0]} tells a planner "
                f"how to make one; leave one of the two out"
            )
