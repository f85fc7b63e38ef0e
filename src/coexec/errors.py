"""Every error a user can cause.

    CoexecError
    ├── UsageError      an option or argument has no meaning here
    ├── ModelError      the model cannot be read, understood or checked
    ├── InputError      wrong name, shape or dtype of a tensor given to ``run``
    ├── DeviceError     a device does not exist, overlaps another or cannot run a task
    │   ├── DeviceNameError   what is named is no device (a UsageError, too)
    │   └── ForkedError       a forked child cannot use what its parent has used
    ├── PlanError       a plan is damaged, breaks a rule or belongs to another model
    │   └── InfeasibleError   no plan exists: some task runs on no device
    ├── StoreError      what was asked for is not stored, is damaged, or cannot be written
    ├── PackageError    a package that is needed is not installed
    └── ExecutionError  a device failed while it ran a segment
        ├── BusyError       as many requests are under way as are allowed: try again
        ├── CheckError      outputs are not those of ONNX Runtime
        ├── ClosedError     the session was closed, or cannot go on
        ├── TerminatedError the caller has ended the run before it was ready
        └── UnfinishedError a run has no result, though no device failed: run again

A message says what is wrong, where, with the numbers, and what to do about it. The command line
prints it on one line; the exit code says of which sort it is (docs/cli.md). The classes also derive
from the closest built-in exception, so that code written for ONNX Runtime (``except ValueError``)
keeps working.

Three warnings say on one line what does not stop a session: `DegradedWarning`, it carries on with
less than it was asked for; `CacheWarning`, it carries on without the cache or with a part of it;
`ModelWarning`, something about the model is doubtful.
"""

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "AssumedWarning",
    "BusyError",
    "CacheWarning",
    "CheckError",
    "ClosedError",
    "CoexecError",
    "DegradedWarning",
    "DeviceError",
    "DeviceNameError",
    "ExecutionError",
    "ForkedError",
    "InfeasibleError",
    "InputError",
    "ModelError",
    "ModelWarning",
    "PackageError",
    "PlanError",
    "StoreError",
    "TerminatedError",
    "UnfinishedError",
    "UsageError",
    "first_line",
    "nearest",
]


class CoexecError(Exception):
    """Base of all errors that coexec raises on purpose."""


class UsageError(CoexecError, ValueError):
    """An option or argument has no meaning here."""


class ModelError(CoexecError, ValueError):
    """The model cannot be read, understood or checked."""


class InputError(CoexecError, ValueError):
    """A tensor given to ``run`` has a wrong name, shape or dtype."""


class DeviceError(CoexecError, ValueError):
    """A device does not exist, overlaps another one or cannot run a task."""


class DeviceNameError(DeviceError, UsageError):
    """The name of a device is not written as names of devices are."""


class ForkedError(DeviceError):
    """A device was used by the process that was forked, and cannot be used in its child."""


class PlanError(CoexecError, ValueError):
    """A plan is damaged, breaks a rule or belongs to another model."""


class InfeasibleError(PlanError):
    """No plan exists: some task runs on no device."""


class StoreError(CoexecError, OSError):
    """What was asked for is not stored, is damaged, or cannot be written."""


class PackageError(CoexecError, ImportError):
    """A package that is needed is not installed, or cannot be loaded."""


class ExecutionError(CoexecError, RuntimeError):
    """A device failed while it ran a segment."""


class BusyError(ExecutionError):
    """As many requests are under way as are allowed. The same request may be answered later."""


class CheckError(ExecutionError):
    """Outputs differ from ONNX Runtime's by more than rounding does."""

    facts: Mapping[str, Any] = {}
    """What was found, for programs."""


class ClosedError(ExecutionError):
    """The session was closed, or cannot go on: another one has to be made."""


class TerminatedError(ExecutionError):
    """The caller has ended the run, by its ``RunOptions``, before it was ready."""


class UnfinishedError(ExecutionError):
    """A run has no result, though no device failed: its thread was killed, or the caller is inside
    of a run already. The next one may have a result."""


class DegradedWarning(RuntimeWarning):
    """A session carries on with less than it was asked for: a device has failed."""


class CacheWarning(RuntimeWarning):
    """The cache cannot be read or written, or was damaged. Results are right, only later."""


class ModelWarning(UserWarning):
    """Something about a model is doubtful: a declared shape is wrong, or it cannot be checked."""


class AssumedWarning(ModelWarning):
    """A model leaves dimensions open that nobody has given: sizes were found for them."""


def first_line(error: BaseException) -> str:
    """What another library says, without its stack of details; its type if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest(name: str, known: Iterable[str]) -> str:
    """Hint for a name that does not exist: " (did you mean 'devices'?)"; empty if no known name is
    similar. The error that it is a part of lists all of them."""
    from difflib import get_close_matches  # every session imports this module, few make an error

    similar = get_close_matches(name, known, n=1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""
