"""All errors that a user can cause.

    CoexecError
    ├── UsageError      an option or argument has no meaning here
    ├── ModelError      the model cannot be read, understood or checked
    ├── InputError      wrong name, shape or dtype of a tensor given to ``run``
    ├── DeviceError     a device does not exist, overlaps another or cannot run a task
    │   ├── DeviceNameError   the name is no name of a device (also a UsageError)
    │   ├── ForkedError       a forked child cannot use a device that its parent has used
    │   └── UncompiledError   an engine cannot compile parts of a plan
    ├── PlanError       a plan is damaged, breaks a rule or belongs to another model
    │   └── InfeasibleError   no plan exists: some task runs on no device
    ├── StoreError      a stored entry does not exist, is damaged, or cannot be written
    ├── PackageError    a package that is needed is not installed
    └── ExecutionError  a device failed while it ran a segment
        ├── BusyError       the limit of concurrent requests is reached: try again
        ├── CheckError      outputs differ from those of ONNX Runtime
        ├── ClosedError     the session was closed, or cannot continue
        ├── DeadlineError   a request waited longer than it may
        ├── TerminatedError the caller ended the run before it was finished
        └── UnfinishedError a run has no result, though no device failed: run again

A message says what is wrong, where, with the numbers, and what to do about it. The command line
prints it on one line, and its exit code depends on the class (docs/cli.md). Each class also derives
from the closest built-in exception, so that code written for ONNX Runtime (``except ValueError``)
keeps working.

Three warnings report, on one line, problems that do not stop a session. `DegradedWarning`: the
session continues with fewer devices or features than requested. `CacheWarning`: it continues
without the cache or with a part of it. `ModelWarning`: something about the model is doubtful.
"""

from collections.abc import Iterable, Mapping
from typing import Any


class CoexecError(Exception):
    """Base of all errors that coexec raises on purpose."""

    device = ""
    """Name of the device that has failed, if it is known."""


class UsageError(CoexecError, ValueError):
    """An option or argument has no meaning here."""


class ModelError(CoexecError, ValueError):
    """The model cannot be read, understood or checked."""


class InputError(CoexecError, ValueError):
    """A tensor given to ``run`` has a wrong name, shape or dtype."""


class DeviceError(CoexecError, ValueError):
    """A device does not exist, overlaps another one or cannot run a task."""


class UncompiledError(DeviceError):
    """An engine cannot compile parts of a plan."""

    reasons: Mapping[tuple[str, str, str], str] = {}
    """By task, device and engine, why not."""


class DeviceNameError(DeviceError, UsageError):
    """A name does not have the form of a device name."""


class ForkedError(DeviceError):
    """A forked child cannot use a device that its parent process has used before the fork."""


class PlanError(CoexecError, ValueError):
    """A plan is damaged, breaks a rule or belongs to another model."""


class InfeasibleError(PlanError):
    """No plan exists: some task runs on no device."""


class StoreError(CoexecError, OSError):
    """A stored entry does not exist, is damaged, or cannot be written."""


WITHOUT_ONNX_RUNTIME = (
    "coexec needs ONNX Runtime, which is not installed: pip install onnxruntime for CPU cores, or "
    "pip install onnxruntime-gpu for NVIDIA's GPUs, and only one of the two"
)


class PackageError(CoexecError, ImportError):
    """A package that is needed is not installed, or cannot be loaded."""


class ExecutionError(CoexecError, RuntimeError):
    """A device failed while it ran a segment."""

    facts: Mapping[str, Any] = {}
    """The facts that are known nevertheless, for programs."""


class BusyError(ExecutionError):
    """The limit of concurrent requests is reached. The same request may succeed later."""


class CheckError(ExecutionError):
    """Outputs differ from those of ONNX Runtime by more than rounding errors."""


class ClosedError(ExecutionError):
    """The session was closed, or cannot continue: create a new one."""


class DeadlineError(ExecutionError):
    """A request waited longer than it may, and was not computed."""


class TerminatedError(ExecutionError):
    """The caller ended the run by its ``RunOptions`` before it was finished."""


class UnfinishedError(ExecutionError):
    """A run has no result, though no device failed: its thread was killed, or the caller is already
    inside a run. The next run may have a result."""


class DegradedWarning(RuntimeWarning):
    """A session continues with fewer devices or features than requested: a device has failed."""


class CacheWarning(RuntimeWarning):
    """The cache cannot be read or written, or was damaged. Results are correct, but take longer."""


class ModelWarning(UserWarning):
    """Something about a model is doubtful: a declared shape is wrong, or it cannot be checked."""


class AssumedWarning(ModelWarning):
    """A model has open dimensions without sizes from the caller: sizes were assumed for them."""


def first_line(error: BaseException) -> str:
    """The first line of an error message of another library; the error's type if it is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for a name that does not exist: " (did you mean 'devices'?)"; empty if no known name
    is similar. The error message with this hint should also list all known names."""
    from difflib import get_close_matches  # imported here, because only errors need it

    similar = get_close_matches(name, names, n=1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""


def unknown_option(owner: str, name: str, options: Iterable[str]) -> UsageError:
    """The error for an option that its owner, such as "planner heft", does not have."""
    names = list(options)
    return UsageError(
        f"{owner} has no option {name!r}{nearest(name, names)}; it has {', '.join(names) or 'none'}"
    )
